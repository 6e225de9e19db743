import importlib.util
from pathlib import Path

PATH = Path(__file__).parent.parent / "scripts" / "docstring_collection.py"
specification = importlib.util.spec_from_file_location("docstring_collection", PATH)
collection = importlib.util.module_from_spec(specification)
specification.loader.exec_module(collection)


def convolve():
    """Convolve two arrays with `mode`.

    Slow for large ones.

    See Also
    --------
    correlate, fft.rfft : Other products.
        convolve2d is no name here.
    :func:`~matplotlib.pyplot.plot`: Draw them.

    Notes
    -----
    Written by hand.
    """


def summary_alone():
    """Return nothing."""


def test_a_docstring_is_read_as_its_summary_the_rest_and_the_names_that_it_points_to():
    assert collection.documented(convolve) == (
        "Convolve two arrays with mode.",
        "Slow for large ones. Written by hand.",
        ["correlate", "fft.rfft", "matplotlib.pyplot.plot"],
    )
    assert collection.documented(summary_alone) is None


def test_a_request_asks_for_its_entry_and_those_that_it_points_to():
    entries = {
        "p.signal.convolve": ("Convolve two arrays with it.", "body", ["correlate", "rfft", "p.fft.ifft", "nothing"]),
        "p.signal.correlate": ("Correlate two long arrays.", "body", []),
        "p.image.correlate": ("convolve two arrays with IT.", "body", ["rfft"]),
        "p.fft.rfft": ("Too short", "body", ["ifft"]),
        "p.fft.ifft": ("Transform the array back again.", "body", ["ifft"]),
    }
    # of two names "correlate" the nearer one; no second request of the same words; none that points to itself alone
    assert collection.requests_of(entries) == {
        "p.signal.convolve": ["p.fft.ifft", "p.fft.rfft", "p.signal.convolve", "p.signal.correlate"]
    }


def test_a_name_is_indexed_as_words():
    assert collection.spoken("matplotlib.axes.Axes.set_xticks") == "matplotlib axes Axes set xticks"
