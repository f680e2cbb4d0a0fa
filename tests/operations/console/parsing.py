"""A parser that reads the pages back."""

from __future__ import annotations

from html.parser import HTMLParser

EVIL = """<script>alert(1)</script>"'&<img src=x onerror=alert(2)>"""


class Parsed(HTMLParser):
    """The elements' names and attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        # Plain text: a piece of Markup would escape what is added to it.
        self.feed(str(html))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data
