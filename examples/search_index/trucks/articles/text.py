"""From the HTML of an article to words."""

from __future__ import annotations

from html.parser import HTMLParser


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def plain(html: str) -> str:
    """The text without its tags."""
    parser = _Words()
    parser.feed(html)
    parser.close()
    return " ".join(" ".join(parser.words).split())
