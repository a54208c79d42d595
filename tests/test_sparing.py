"""Checkpoints that take long are written less often, and nothing else changes."""

from fedcodist import config, runs
from fedcodist.runs import session


def test_long_checkpoints_are_written_less_often_and_end_in_the_same_bytes(tmp_path, monkeypatch):
    made = config.read("quick/toy", ["rounds=4", "checkpoint_every=1", "method={ kind = 'fedavg' }"])
    task, ended = made.task.load(), {}
    commits: list[int] = []

    def commit(self, t, state, *, final=False, real=runs.Run.commit):
        commits.append(t)
        return real(self, t, state, final=final)

    monkeypatch.setattr(runs.Run, "commit", commit)
    for name, costly, wanted in (("often", 1e9, [1, 2, 3, 4]), ("seldom", -1.0, [1, 4])):
        monkeypatch.setattr(session, "COSTLY", costly)
        monkeypatch.setattr(session, "SPARING", 1e9)
        commits.clear()
        *_, last = session.perform(config.assemble(made, task, 0), tmp_path / name)
        assert commits == wanted
        saved = last.path / "checkpoints" / "000004"
        ended[name] = {path.name: path.read_bytes() for path in sorted(saved.glob("*.safetensors"))}
        assert [row["round"] for row in runs.read(last.path).rounds] == [1, 2, 3, 4]
    assert ended["often"] == ended["seldom"] and ended["often"]
