"""Rows of text: the same rows from every format, the place and reason of everything that is wrong, and going on where one stopped."""

import csv
import gzip
import importlib
import json
import lzma
import os
import random
from collections import Counter

import pytest

from fedcodist.errors import DataError
from fedcodist.readers import lines, rows
from fedcodist.readers.rows import Columns, Row, read_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
HEADER = ["client", "type", "date", "split", "tokens"]
TABLE = [
    ["ann", "question", "2020-01-02", "train", "How do I sort , quickly ?"],
    ["bob", "answer", "2020-01-03", "test", 'with " sorted "'],
    ["ann", "answer", "2020-01-04", "train", "grüße ."],
]
WANTED = [Row(*row[:4], tuple(row[4].lower().split())) for row in TABLE]


def tsv(table, header=HEADER):
    return "".join("\t".join(row) + "\n" for row in [header, *table]).encode()


def write_csv(path, table, header=HEADER):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *table])


def jsonl(table, header=HEADER):
    return "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in table).encode()


def parquet(path, table, header=HEADER, **options):
    columns = {name: [row[i] for row in table] for i, name in enumerate(header)}
    pq.write_table(pa.table(columns), path, **options)


def write(path, table, header=HEADER):
    """The table in the format that the name asks for."""
    name = path.name
    if ".parquet" in name:
        parquet(path, table, header, row_group_size=2)
        return path
    if ".csv" in name:
        write_csv(path, table, header)
        raw = path.read_bytes()
    else:
        raw = tsv(table, header) if ".tsv" in name else jsonl(table, header)
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else lzma.compress(raw) if name.endswith(".xz") else raw)
    return path


NAMES = ["a.tsv", "a.tsv.gz", "a.tsv.xz", "a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.xz", "a.json.gz", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_rows(tmp_path, name):
    found = read_rows(write(tmp_path / name, TABLE))
    assert list(found) == WANTED and found.done == 3


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.parquet"])
def test_a_directory_is_one_stream_and_start_goes_on(tmp_path, name):
    for i in range(3):
        write(tmp_path / f"part-{i}-{name}", [[f"c{i}", *row[1:]] for row in TABLE])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / f"._part-0-{name}").write_bytes(b"\0\5\x16\7")  # as some systems leave beside a file
    (tmp_path / "README.md").write_text("not rows")
    everything = [Row(f"c{i}", *row[1:]) for i in range(3) for row in WANTED]
    assert list(read_rows(tmp_path)) == everything
    for start in range(10):
        found = read_rows(tmp_path, start=start)
        assert list(found) == everything[start:] and found.done == 9, start
    with pytest.raises(DataError, match="got 9 rows; allowed at least 10"):
        list(read_rows(tmp_path, start=10))
    found = read_rows(tmp_path)
    assert [next(found) for _ in range(4)] == everything[:4] and found.done == 4


def test_done_counts_what_was_left_out_and_never_half_a_row(tmp_path):
    texts = ["One here. Two here. Three here.", "  ", "Four."]
    path = write(tmp_path / "a.jsonl", [["ann", text] for text in texts], ["client", "text"])
    counts = Counter()
    found = read_rows(path, counts=counts)
    done = [(" ".join(row.words), found.done) for row in found]
    assert done == [("one here .", 0), ("two here .", 0), ("three here .", 1), ("four .", 3)]
    assert counts == {"no words": 1} and found.done == 3
    assert [row.words for row in read_rows(path, start=1)] == [("four", ".")]


def test_start_behind_a_last_line_without_end(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.tsv").write_text(f"client\ttokens\n{name}1\tx\n{name}2\ty")
    assert [[row.client for row in read_rows(tmp_path, start=start)] for start in (1, 2, 4)] == [["a2", "b1", "b2"], ["b1", "b2"], []]


def test_columns_by_any_name_and_tokens_before_text(tmp_path):
    path = write(tmp_path / "a.tsv", [["7", "Raw one.", "Cooked two"]], ["user", "text", "words"])
    assert list(read_rows(path, Columns("user", tokens="words"))) == [Row("7", "", "", "", ("cooked", "two"))]
    assert list(read_rows(path, Columns("", tokens=""))) == [Row("", "", "", "", ("raw", "one", "."))]
    write_csv(tmp_path / "b.csv", [["0", "x y"]], ["", "tokens"])  # an unnamed column is nobody's client
    assert list(read_rows(tmp_path / "b.csv", Columns(""))) == [Row("", "", "", "", ("x", "y"))]


@pytest.mark.parametrize(
    "columns, says",
    [
        (Columns(), ["no column 'client' for the client", "clients, type", "did you mean clients?"]),
        (Columns(""), ["neither column 'tokens' nor 'text'", "clients, type, date, split, token", "did you mean token?"]),
        (Columns("", domain="typ", tokens="token"), ["no column 'typ' for the domain", "did you mean type?"]),
    ],
)
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize("errors", ["fail", "skip", "replace"])
def test_missing_columns(tmp_path, name, columns, says, errors):
    path = write(tmp_path / name, TABLE, ["clients", "type", "date", "split", "token"])
    with pytest.raises(DataError) as error:
        list(read_rows(path, columns, errors))
    assert all(part in str(error.value) for part in [name, *says]), error.value


GOOD = b"ann\tq\t2020\ttrain\ta b\n"
LONG = b"ann\tq\t2020\ttrain\t" + b"ab " * (lines.LONGEST // 3) + b"\n"
BAD_TSV = [  # a line, its reason, what is said, and whether "replace" can mend it
    (b"ann\tq\t2020\ttrain\ta \xff b\n", "not UTF-8", r"b'\xff'", True),
    (b"ann\tq\t2020\ttrain\ta \xed\xa0\x80 b\n", "not UTF-8", "UTF-8", True),  # half of a surrogate pair
    (b"ann\tq\t2020\ttrain\ta \0 b\n", "NUL", "a NUL", True),
    (LONG, "too long", "more than 1048576 bytes", True),
    (b"\n", "empty row", "an empty line", False),
    (b"ann\tq\t2020\n", "fields", "3 fields; allowed 5", False),
    (b"ann\tq\t2020\ttrain\ta\tb\n", "fields", "6 fields; allowed 5", False),
    (b"\tq\t2020\ttrain\ta b\n", "client", "'' for 'client'", False),
    (b"../ann\tq\t2020\ttrain\ta b\n", "client", "'../ann'", False),
    (b"..\tq\t2020\ttrain\ta b\n", "client", "'..'", False),
    (b"a" * 201 + b"\tq\t2020\ttrain\ta b\n", "client", "aaa", False),
    (b"an\rn\tq\t2020\ttrain\ta b\n", "client", r"'an\rn'", False),
    (b"ann\tq\x1b[2J\t2020\ttrain\ta b\n", "name", "domain, date and split", False),
]


@pytest.mark.parametrize("raw, reason, says, mended", BAD_TSV, ids=[f"{i}-{row[1]}" for i, row in enumerate(BAD_TSV)])
@pytest.mark.parametrize("packed", [False, True])
def test_bad_lines(tmp_path, raw, reason, says, mended, packed):
    path = tmp_path / ("a.tsv.gz" if packed else "a.tsv")
    whole = tsv([]) + GOOD + raw + GOOD
    path.write_bytes(gzip.compress(whole) if packed else whole)
    found = read_rows(path)
    with pytest.raises(DataError) as error:
        list(found)
    assert "\n" not in str(error.value) and f"{path}: line 3" in str(error.value) and says in str(error.value), error.value
    assert found.done == 1
    for errors in ("skip", "replace"):
        counts = Counter()
        found = read_rows(path, errors=errors, counts=counts)
        kept = list(found)
        assert counts == {reason: 1} and found.done == 3
        assert len(kept) == (3 if errors == "replace" and mended else 2)
        assert kept[0] == kept[-1] == Row("ann", "q", "2020", "train", ("a", "b"))
        if len(kept) == 3 and reason in ("NUL", "not UTF-8"):
            assert kept[1].words[0] == "a" and set(kept[1].words[1]) == {"\ufffd"} and kept[1].words[2] == "b"
    assert len(list(read_rows(path, start=2))) == 1  # what is passed over is not looked at


def test_a_line_of_exactly_the_limit_is_whole(tmp_path):
    start = b"ann\tq\t2020\ttrain\t"
    for size, good in ((lines.LONGEST, True), (lines.LONGEST + 1, False)):
        path = tmp_path / "a.tsv"
        path.write_bytes(tsv([]) + start + b"a" * (size - len(start)) + b"\n" + GOOD)
        counts = Counter()
        assert len(list(read_rows(path, errors="skip", counts=counts))) == 1 + good and bool(counts) != good


def test_rows_without_words_are_never_an_error(tmp_path):
    path = write(tmp_path / "a.tsv", [["ann", "q", "", "", " "], *TABLE])
    counts = Counter()
    assert list(read_rows(path, counts=counts)) == WANTED and counts == {"no words": 1}


BAD_JSON = [
    ("[1, 2]", "JSON", "one JSON object a line"),
    ("{", "JSON", "no JSON object"),
    ('{"client": "a", "client": "b", "tokens": "x"}', "JSON", "the key 'client' twice"),
    ('{"client": "a", "tokens": "x", "more": {"k": 1, "k": 2}}', "JSON", "the key 'k' twice"),
    ('{"client": true, "tokens": "x"}', "type", "true for 'client'"),
    ('{"client": 1.5, "tokens": "x"}', "type", "1.5 for 'client'"),
    ('{"client": "a", "tokens": ["x"]}', "type", "['x'] for 'tokens'"),
    ('{"client": "a"}', "fields", "neither 'tokens' nor 'text'"),
    ('{"tokens": "x"}', "client", "'' for 'client'"),
    ('{"client": "a\\nb", "tokens": "x"}', "client", r"'a\nb'"),
    ('{"client": "a", "tokens": "x \\ud800"}', "surrogate", "surrogate"),
    ('{"client": "a", "tokens": "x \\u0000"}', "NUL", "NUL"),
    ("", "empty row", "empty"),
    ("[" * 100_000, "JSON", "one JSON object a line"),
    ('{"client": ' + "1" * 5_000 + "}", "JSON", "no JSON object"),
]


@pytest.mark.parametrize("line, reason, says", BAD_JSON, ids=[f"{i}-{row[1]}" for i, row in enumerate(BAD_JSON)])
def test_bad_objects(tmp_path, line, reason, says):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"client": 5, "tokens": "A b", "type": null}}\n{line}\n{{"client": "x", "tokens": "c"}}')
    with pytest.raises(DataError) as error:
        list(read_rows(path))
    assert f"{path}: line 2" in str(error.value) and says in str(error.value), error.value
    for errors in ("skip", "replace"):
        counts = Counter()
        kept = list(read_rows(path, errors=errors, counts=counts))
        assert counts == {reason: 1}
        assert (kept[0], kept[-1]) == (Row("5", "", "", "", ("a", "b")), Row("x", "", "", "", ("c",)))
        assert [row.words for row in kept[1:-1]] == ([("x", "\ufffd")] if errors == "replace" and reason in ("NUL", "surrogate") else [])


def test_csv_with_quotes_and_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfclient,tokens\r\nann,"a, b\r\nc"\r\nbob,"say ""d"""\r\n')
    assert [row[0::4] for row in read_rows(path)] == [("ann", ("a,", "b", "c")), ("bob", ("say", '"d"'))]
    for raw, reason, says in [
        (b'ann,"a"b\nbob,c\n', "CSV", "line 2: got ',' expected after"),
        (b'ann,"a\nbob,c\n', "CSV", "unexpected end of data"),
        (b"ann,a,b\nbob,c\n", "fields", "line 2: got 3 fields"),
        (b'ann,"a\n\xff"\nbob,c\n', "not UTF-8", "line 3"),  # the whole record goes, not only the line
        (b"\nbob,c\n", "empty row", "line 2"),
        (b'ann,"' + b"abcdefg\n" * 2**18 + b'"\n', "CSV", "field larger than field limit"),
    ]:
        path.write_bytes(b"client,tokens\n" + raw)
        with pytest.raises(DataError, match="a.csv: line") as error:
            list(read_rows(path))
        assert says in str(error.value), error.value
        counts = Counter()
        kept = [row.client for row in read_rows(path, errors="skip", counts=counts)]
        assert counts[reason] == (2 if "limit" in says else 1)  # the quote that ends the long field opens another
        assert kept == (["bob"] if raw.endswith(b"\nbob,c\n") and says != "unexpected end of data" else [])


@pytest.mark.parametrize(
    "name, raw, says",
    [
        ("a.tsv", b"", "an empty file"),
        ("a.csv", b"", "an empty file"),
        ("a.csv", b"\nann,b\n", "an empty first line"),
        ("a.tsv", b"client\ttokens\xff\nann\tb\n", "UTF-8"),
        ("a.tsv", b"client\tclient\ttokens\nann\tann\tb\n", "two columns 'client'"),
        ("a.tsv", b"PAR1" + bytes(20), "a Parquet file; allowed text"),
        ("a.jsonl", b"\x80\x04\x95" + bytes(20), "a pickle"),
        ("a.tsv.gz", gzip.compress(tsv(TABLE) * 50)[:-30], "truncated or damaged"),
        ("a.tsv.gz", gzip.compress(gzip.compress(tsv(TABLE))), "a gzip file"),
        ("a.parquet", b"client,tokens\n", "allowed a Parquet file"),
        ("a.parquet", b"PAR1" + bytes(100) + b"PAR1", "truncated or damaged"),
        ("a.parquet.gz", b"", "a name that ends with '.gz'"),
        ("a.docx", b"x", "a name that ends with '.docx'"),
    ],
)
@pytest.mark.parametrize("errors", ["fail", "skip"])
def test_files_that_are_no_rows(tmp_path, name, raw, says, errors):
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(DataError) as error:
        list(read_rows(path, errors=errors))
    assert str(path) in str(error.value) and says in str(error.value) and "\n" not in str(error.value), error.value


def test_no_file_at_all(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    write(tmp_path / "mixed" / "a.tsv", TABLE)
    write(tmp_path / "mixed" / "a.csv", TABLE)
    for name, says in [
        ("pipe.tsv", "a FIFO"),
        ("none.tsv", "nothing at this path"),
        ("none", "nothing at this path"),
        ("empty", "no file of rows"),
        ("mixed", "files of CSV and TSV"),
    ]:
        with pytest.raises(DataError, match=says):
            list(read_rows(tmp_path / name))
    with pytest.raises(DataError, match="errors: got 'ignore'"):
        read_rows(tmp_path / "mixed", errors="ignore")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="start: got -1"):
        read_rows(tmp_path / "mixed", start=-1)


def test_parquet_of_other_types(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {
        "client": pa.array([1, 2**40, None]),
        "type": pa.array(["q", "a", "q"]).dictionary_encode(),
        "date": pa.array([0, 1, 2], pa.timestamp("ms")),
        "tokens": pa.array([b"A b", b"c \xff", b"d"], pa.binary()),
        "vector": pa.array([[1.0], [2.0], [3.0]]),  # not asked for, not read
    }
    pq.write_table(pa.table(columns), path)
    counts = Counter()
    kept = list(read_rows(path, errors="replace", counts=counts))
    assert kept == [
        Row("1", "q", "1970-01-01 00:00:00.000", "", ("a", "b")),
        Row(str(2**40), "a", "1970-01-01 00:00:00.001", "", ("c", "\ufffd")),
    ]
    assert counts == {"not UTF-8": 1, "client": 1}
    with pytest.raises(DataError, match="a.parquet: row 2: got the bytes"):
        list(read_rows(path))
    with pytest.raises(DataError, match="column 'vector' of list"):
        list(read_rows(path, Columns(tokens="vector")))


def test_parquet_strings_that_are_no_text(tmp_path):
    path = tmp_path / "a.parquet"
    wrong = pa.array([b"a", b"b \xff", b"c \0"]).view(pa.string())  # Parquet believes whoever wrote it
    pq.write_table(pa.table({"client": ["x", "y", "z"], "tokens": wrong}), path)
    counts = Counter()
    assert [row.words for row in read_rows(path, errors="replace", counts=counts)] == [("a",), ("b", "\ufffd"), ("c", "\ufffd")]
    assert [row.client for row in read_rows(path, errors="skip")] == ["x"] and counts == {"not UTF-8": 1, "NUL": 1}
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2] + raw[-8:])
    with pytest.raises(DataError, match="truncated or damaged"):
        list(read_rows(path))


def test_parquet_passes_over_row_groups_and_says_the_row(tmp_path):
    path = tmp_path / "a.parquet"
    parquet(path, [[f"c{i}" if i != 2_500 else "/", "x"] for i in range(3_000)], ["client", "tokens"], row_group_size=1_200)
    found = read_rows(path, start=1_300)
    assert next(found).client == "c1300" and found.done == 1_301
    with pytest.raises(DataError, match="a.parquet: row 2501: got '/' for 'client'"):
        list(found)
    raw = bytearray(path.read_bytes())
    raw[10:1_000] = bytes(990)
    path.write_bytes(raw)
    assert next(read_rows(path, start=1_300)).client == "c1300"  # the damaged first group is never read
    with pytest.raises(DataError, match="truncated or damaged"):
        list(read_rows(path))
    assert rows.BATCH < 1_200  # else this would not look at several batches of a group


def test_a_parquet_bomb_is_not_read(tmp_path):
    path = tmp_path / "a.parquet"
    many = pa.array([b"a" * 2**20]).view(pa.string()).take(pa.array([0] * 80))
    pq.write_table(pa.table({"client": ["x"] * 80, "tokens": many}), path, compression="zstd", use_dictionary=False)
    with pytest.raises(DataError, match="at most 200 times the packed size"):
        list(read_rows(path))


def test_damaged_parquet_is_an_error_and_never_the_end_of_the_process(tmp_path):
    path = tmp_path / "a.parquet"
    parquet(path, 100 * TABLE, row_group_size=100)
    whole = path.read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        raw = bytearray(whole)
        for _ in range(draw.randint(1, 6)):
            raw[draw.randrange(4, len(raw))] = draw.randrange(256)
        path.write_bytes(raw)
        try:
            list(read_rows(path, errors="skip"))
        except DataError:
            refused += 1
    assert refused > 100


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", TABLE)

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"pip install 'fedcodist\[data\]'"):
        list(read_rows(path))


def saved(place, rows):
    """What `save_to_disk` of Hugging Face's datasets leaves, in two streams."""
    place.mkdir(parents=True)
    table, half = pa.Table.from_pylist(rows), len(rows) // 2
    for k, part in enumerate((table.slice(0, half), table.slice(half))):
        with pa.OSFile(str(place / f"data-{k}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(part, max_chunksize=2)
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": f"data-{k}.arrow"} for k in range(2)]}))
    return place


def test_a_saved_data_set(tmp_path):
    rows = [{"client": f"c{k % 2}", "type": "answer", "tokens": f"word{k} End"} for k in range(7)]
    path = saved(tmp_path / "one", rows)
    found = list(read_rows(path))
    assert [row.words for row in found] == [(f"word{k}", "end") for k in range(7)] and found[0][:4] == ("c0", "answer", "", "")
    assert list(read_rows(path, start=5)) == found[5:]  # from the middle of the second stream
    with pytest.raises(DataError, match="no column 'user' for the client"):
        list(read_rows(path, Columns(client="user")))


def test_the_splits_of_a_saved_data_set(tmp_path):
    rows = [{"client": f"c{k}", "tokens": f"word{k}"} for k in range(4)]
    for split in ("train", "validation"):
        saved(tmp_path / "both" / split, rows)
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert [row.split for row in read_rows(tmp_path / "both")] == ["train"] * 4 + ["held_out"] * 4
    assert {row.split for row in read_rows(tmp_path / "both", Columns(split=None))} == {""}
