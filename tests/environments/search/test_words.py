import unicodedata

from steadyrl.environments.search.words import content_words


def test_words_are_distinct_lower_case_and_carry_a_subject():
    assert content_words("Put the item into a QUEUE, put_nowait!") == ["put", "item", "queue", "nowait"]


def test_a_combining_accent_does_not_cut_a_word():
    text = "recherche de l'école élémentaire"
    decomposed = content_words(unicodedata.normalize("NFD", text))
    assert [unicodedata.normalize("NFC", word) for word in decomposed] == content_words(text)
