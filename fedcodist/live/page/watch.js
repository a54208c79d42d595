"use strict";
// The page of `fedcodist watch`: each event has the state of all runs, and everything is drawn again from it.

const SVG = "http://www.w3.org/2000/svg";
const W = 520, H = 240, LEFT = 36, RIGHT = 10, TOP = 10, BOTTOM = 22, STRIP = 9;  // of a panel
const at = id => document.getElementById(id);

function element(name, attributes = {}, ...inside) {
  const made = attributes.svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (key !== "svg") made.setAttribute(key, value);
  made.append(...inside);
  return made;
}
const svg = (name, attributes = {}, ...inside) => element(name, { ...attributes, svg: true }, ...inside);
const cell = (value, kind = "") => element("td", kind ? { class: kind } : {}, value ?? "");
const digits = (value, places) => value === null || value === undefined ? "" : value.toFixed(places);

function duration(seconds) {
  if (seconds === null) return "";
  const s = Math.round(seconds), h = Math.floor(s / 3600), m = Math.floor(s % 3600 / 60);
  return h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}

function colours(runs) {  // one for each method of an experiment; the baseline is grey
  const found = new Map();
  let next = 1;
  for (const run of runs) {
    const key = `${run.name} ${run.method}`;
    if (!found.has(key)) found.set(key, run.kind === "fedavg" ? 0 : 1 + (next++ - 1) % 6);
  }
  return run => found.get(`${run.name} ${run.method}`);
}

function progress(runs, colour) {
  at("progress").replaceChildren(...runs.map(run => {
    const bar = element("progress", { max: run.rounds || 1, value: run.round, "aria-label": `rounds of ${run.name}` });
    const method = element("td", {}, element("i", { class: `dot k${colour(run)}` }), run.method);
    const row = [cell(run.name), method, cell(String(run.seed)), cell(run.state, run.state), cell(`${run.round} of ${run.rounds ?? "?"}`, "n")];
    return element("tr", {}, ...row, element("td", { class: "bar" }, bar), cell(duration(run.left_seconds), "n"));
  }));
}

function range(runs) {  // one for all panels, so that they can be compared
  const values = runs.flatMap(run => run.pools.flatMap(p => p.curve.map(point => point[1])));
  const low = values.length ? Math.floor(Math.min(...values) / 20) * 20 : 0;
  return [low, values.length ? Math.max(low + 20, Math.ceil(Math.max(...values) / 20) * 20) : 100];
}

function panel(pool, runs, colour, most, [low, high]) {
  const shown = runs.map(run => [run, run.pools.find(p => p.pool === pool)]).filter(pair => pair[1]);
  const x = t => LEFT + (W - LEFT - RIGHT) * t / Math.max(1, most), y = v => TOP + (H - TOP - BOTTOM) * (1 - (v - low) / (high - low || 1));
  const tall = H + STRIP * shown.length;
  const picture = svg("svg", { viewBox: `0 0 ${W} ${tall}`, role: "img", "aria-label": `held-out accuracy of ${pool}` });
  for (let k = 0; k <= 4; k++) {
    const v = low + (high - low) * k / 4;
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }), svg("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, digits(v, v % 1 ? 1 : 0)));
    const t = Math.round(most * k / 4);
    picture.append(svg("text", { x: x(t), y: H - 6, "text-anchor": k === 4 ? "end" : "middle" }, String(t)));
  }
  shown.forEach(([run, p], i) => {
    const k = colour(run), line = H + STRIP * i + STRIP / 2;
    if (p.curve.length) {
      picture.append(svg("polyline", { class: `curve k${k}`, points: p.curve.map(([t, v]) => `${x(t).toFixed(1)},${y(v).toFixed(1)}`).join(" ") }));
      const [t, v] = p.curve[p.curve.length - 1];
      picture.append(svg("circle", { class: `k${k}`, cx: x(t), cy: y(v), r: 3 }, svg("title", {}, `${run.method}, seed ${run.seed}: ${digits(v, 1)} % after round ${t}`)));
    }
    if (p.every_round) picture.append(svg("line", { class: `lesson k${k}`, x1: x(0), x2: x(run.round), y1: line, y2: line }));
    for (const t of p.lessons) picture.append(svg("line", { class: `lesson k${k}`, x1: x(t), x2: x(t), y1: line - 3, y2: line + 3 }));
  });
  return element("figure", {}, element("figcaption", {}, pool), picture);
}

function pools(runs, colour) {
  at("pools").replaceChildren(...runs.flatMap(run => run.pools.map(p => {
    const heard = p.teachers.map(t => `${t.teacher} (${digits(100 * t.before, 0)} → ${digits(100 * t.after, 0)} %)`).join(", ");
    const why = Object.entries(p.reasons).map(([reason, many]) => `${many} ${reason}`).join(", ");
    const lost = [why || (p.dropped ? `${p.dropped}` : ""), p.skipped ? `${p.skipped} rounds without a quorum` : "", p.refused ? `${p.refused} lessons refused` : ""];
    const last = p.curve.length ? p.curve[p.curve.length - 1][1] : null;
    const name = element("td", {}, element("i", { class: `dot k${colour(run)}` }), `${run.name}, ${run.method}, seed ${run.seed}`);
    return element("tr", {}, name, cell(p.pool), cell(digits(last, 1), "n"), cell(digits(p.clients, 0), "n"), cell(digits(p.examples, 0), "n"),
      cell(digits(p.train_loss, 3), "n"), cell(heard), cell(lost.filter(Boolean).join("; ")));
  })));
}

function draw(state) {
  const runs = state.runs, colour = colours(runs), most = Math.max(1, ...runs.map(run => run.rounds || run.round));
  const training = runs.filter(run => run.state === "training").length;
  at("title").textContent = runs.length ? `${runs.length} ${runs.length === 1 ? "run" : "runs"}, ${training} training` : "No runs yet";
  progress(runs, colour);
  const methods = new Map(runs.map(run => [`${run.name}, ${run.method}`, colour(run)]));
  at("legend").replaceChildren(...[...methods].map(([name, k]) => element("span", {}, element("i", { class: `dot k${k}` }), name)));
  const names = [...new Set(runs.flatMap(run => run.pools.map(p => p.pool)))];
  at("panels").replaceChildren(...names.map(pool => panel(pool, runs, colour, most, range(runs))));
  pools(runs, colour);
  const notes = runs.flatMap(run => run.notes.map(note => element("li", {}, `${run.name}, ${run.method}, seed ${run.seed}: ${note}`)));
  at("noted").hidden = !notes.length;
  at("notes").replaceChildren(...notes);
}

const source = new EventSource("/events");
source.onmessage = event => {
  draw(JSON.parse(event.data));
  at("link").className = "";
  at("link").textContent = `Up to date at ${new Date().toLocaleTimeString()}; new rounds appear by themselves.`;
  document.body.dataset.ready = "yes";
};
source.onerror = () => {
  at("link").className = "lost";
  at("link").textContent = "No connection; it is tried again. The runs themselves are not touched by this page.";
};
