"""docs/PROTOCOL.md is what the classes say, and they say something about everything."""

import re

import pytest
from msgspec import Struct
from scripts.docs import PAGE, entries_of, fields_of, page, sentence_of

from tests.protocol.strategies import MESSAGES
from tidelog.protocol.batch import BatchHeader
from tidelog.protocol.compression import CODECS
from tidelog.protocol.errors import BY_CODE
from tidelog.protocol.messages import Entry

EVERYTHING: list[type[Struct]] = [*MESSAGES, *Entry.__subclasses__()]
everything = pytest.mark.parametrize("cls", EVERYTHING, ids=lambda cls: cls.__name__)


@pytest.fixture(scope="module")
def text() -> str:
    """The page, which is made once for all that look something up on it."""
    return page()


def test_the_page_is_what_the_classes_say(text: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == text, "run scripts/docs"


@everything
def test_every_message_introduces_itself(cls: type[Struct]) -> None:
    assert re.match(r"[A-Z].*[.]$", sentence_of(cls))


@everything
def test_every_field_has_its_sentence(cls: type[Struct]) -> None:
    silent = [field.name for field in fields_of(cls) if not re.match(r"[-0-9A-Z`].*[.]$", field.sentence)]
    assert silent == []


@everything
def test_every_message_and_entry_is_on_the_page(cls: type[Struct], text: str) -> None:
    assert re.search(rf"^(#### {cls.__name__} \(|\*\*{cls.__name__}\*\*: )", text, re.MULTILINE)


def test_every_entry_belongs_to_a_message() -> None:
    assert {entry for cls in MESSAGES for entry in entries_of(cls)} == set(Entry.__subclasses__())


def test_the_page_names_every_error_codec_and_field_of_a_batch(text: str) -> None:
    assert all(f"| {code} | `{error.name()}` |" in text for code, error in BY_CODE.items())
    assert all(f"{number} {name}" in text for name, number in CODECS.items())
    unnamed = [field for field in BatchHeader._fields if not re.search(rf"\b{field}\b", text)]
    assert unnamed == []


def test_a_field_without_a_sentence_would_be_found() -> None:
    planted = [field._replace(sentence="") for field in fields_of(MESSAGES[0])]
    assert not any(re.match(r"[-0-9A-Z`].*[.]$", field.sentence) for field in planted)
