"""WikiText-2: words of articles, a line a paragraph."""

from sklearn.utils import Bunch

from .root import first_data_file

_SOURCE = (
    "WikiText-2 (Merity, Xiong, Bradbury and Socher, Pointer sentinel mixture models, 2016), the "
    "version of words, as train, valid and test in a folder wikitext-2, as in "
    "https://github.com/pytorch/examples/tree/main/word_language_model/data"
)
_PARTS = {"train": "train", "validation": "valid", "test": "test"}
_NAMES = ("wikitext-2/{}.txt", "wikitext-2/wiki.{}.tokens")


def fetch_wikitext2(*, subset: str = "train", data_home: str | None = None) -> Bunch:
    """Load the words of WikiText-2, with ``<eos>`` at the end of each line.

    Words are those of the file, split at spaces; rare ones are ``<unk>`` there already. Empty lines
    count as well, as is usual: the validation file has 217,646 words, the test file 245,569.

    Parameters
    ----------
    subset : {"train", "validation", "test"}, default="train"
    data_home : str, optional
        Folder that holds ``wikitext-2/train.txt``, ``valid.txt`` and ``test.txt``, or the files as
        published, ``wikitext-2/wiki.train.tokens`` and so on. None is the folder in the environment
        variable TWINSOLVE_DATA, else the user's cache folder.

    Returns
    -------
    Bunch
        ``words``, a list of str, and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the file does not exist: names it, the folder and where the data set comes from.
    ValueError
        If `subset` is unknown, or the file is no text.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_wikitext2
    >>> fetch_wikitext2(subset="test").words[:5]  # doctest: +SKIP
    ['<eos>', '=', 'Robert', '<unk>', '=']
    """
    if subset not in _PARTS:
        raise ValueError(f"subset: must be one of {', '.join(_PARTS)}, got {subset!r}")
    names = [name.format(_PARTS[subset]) for name in _NAMES]
    path = first_data_file(names, data_home, _SOURCE)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is no text in UTF-8 ({error})") from error
    return Bunch(words=[word for x in lines for word in (*x.split(), "<eos>")], DESCR=_SOURCE)
