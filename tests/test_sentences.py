"""From prose to sentences and words: the paper's contractions, sentences that lose no text, and splitters that are not installed."""

import pytest

from fedcodist.errors import DataError
from fedcodist.readers import sentences as module
from fedcodist.readers.sentences import CONTRACTIONS, first_sentence, repair, sentences, tokenize


@pytest.mark.parametrize("whole", CONTRACTIONS)
def test_every_contraction_of_the_paper(whole):
    before, after = whole.split("'")
    apart = [before, "'", after] if before else ["'", after]
    assert repair(["x", *apart, "."]) == ["x", whole, "."]
    assert tokenize(f"x {whole.upper()}.") == ["x", whole, "."]


def test_contractions_are_those_of_the_paper_and_no_others():
    assert len(CONTRACTIONS) == len(set(CONTRACTIONS)) == 53
    assert tokenize("WASN'T we'll") == ["wasn", "'", "t", "we", "'", "ll"]  # it lists neither
    assert tokenize("the dogs' home, Tom's") == ["the", "dogs", "'", "home", ",", "tom", "'s"]
    assert repair(["i", "'"]) == ["i", "'"] and repair(["'"]) == ["'"] and repair([]) == []
    assert repair(["'", "i'", "d"]) == ["'", "i'", "d"]  # a contraction only where an apostrophe was cut out
    assert tokenize("a_b 3.14 naïve--x\u00a0y") == ["a_b", "3", ".", "14", "naïve", "--", "x", "y"]
    assert tokenize(" \n") == []


def test_wordpunct_is_that_of_nltk():
    nltk = pytest.importorskip("nltk.tokenize")
    for text in ("Good muffins cost $3.88\nin New York.  Please buy me two, thanks!", "e.g. (a-b) ... été 東京!?"):
        assert module._WORD.findall(text) == nltk.wordpunct_tokenize(text)


def test_sentences():
    pytest.importorskip("pysbd")
    text = "Dr. Smith paid $3.50 on Jan. 5. Was it much?  Yes!\n\nA title\nEnd"
    assert sentences(text) == ["Dr. Smith paid $3.50 on Jan. 5.", "Was it much?", "Yes!", "A title", "End"]
    assert first_sentence(text) == sentences(text)[0]
    assert sentences(" \n ") == [] and first_sentence("") == ""


def test_no_text_is_lost_and_long_lines_are_cut_between_words():
    pytest.importorskip("pysbd")
    text = "word 1 " * 2_000
    found = sentences(text)
    assert " ".join(found).split() == text.split() and len(found) > 1 and max(map(len, found)) <= module.BLOCK
    assert sentences("x" * 5_000) == ["x" * 2_000, "x" * 2_000, "x" * 1_000]
    assert sentences("a ȸ b. C ☝ d. ∯") == ["a ȸ b. C ☝ d. ∯"]  # characters that pysbd uses for itself


def test_one_sentence_needs_no_question(monkeypatch):
    def never():
        raise AssertionError

    monkeypatch.setattr(module, "_segmenter", never)
    assert sentences("It rains, as it's wont to.\nSo-so") == ["It rains, as it's wont to.", "So-so"]


def test_punkt_says_how_to_get_it(monkeypatch):
    nltk = pytest.importorskip("nltk.tokenize")

    def missing(text):
        raise LookupError("punkt_tab")

    module._punkt.cache_clear()
    monkeypatch.setattr(nltk, "sent_tokenize", missing)
    with pytest.raises(DataError, match="punkt_tab"):
        sentences("A. B.", "punkt")
    monkeypatch.setattr(nltk, "sent_tokenize", lambda text: [text[:3], text[3:]])
    assert sentences("A b. ", "punkt") == ["A b", "."] and first_sentence(" A b.", "punkt") == "A b"
    module._punkt.cache_clear()
    with pytest.raises(DataError, match="splitter: got 'spacy'"):
        sentences("A.", "spacy")  # type: ignore[arg-type]
