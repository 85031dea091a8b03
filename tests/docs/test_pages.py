"""The Markdown pages: links lead somewhere, prose is wrapped, commands and folders exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from mll_flower.cli import app

ROOT = Path(__file__).parents[2]
COLUMNS = 100
# Folders that hold no pages of this project: environments, results of runs, build files.
SKIPPED = {"runs", "data", "build", "dist"}
ENDS_A_COMMAND = ("&&", "||", "|", ";", ">", "<")


def pages() -> list[Path]:
    """Return all Markdown pages, with paths relative to the root."""
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*.md")]
    return sorted(
        path
        for path in found
        if not any(part.startswith(".") or part in SKIPPED for part in path.parts)
    )


PAGES = pages()
# A text of experiments/texts is read as a part of docs/reproduction.md, where its links lead.
LINKED = [page for page in PAGES if page.parts[0] != "experiments"]
WITH_COMMANDS = [page for page in PAGES if page == Path("README.md") or page.parts[0] == "docs"]


def read(page: Path) -> str:
    return (ROOT / page).read_text()


def lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it is code: in a fence, or the fence itself."""
    fence = ""
    for line in text.splitlines():
        mark = re.match(r" *(```+|~~~+)", line)
        if fence:
            yield line, True
            if mark and line.strip() == fence:
                fence = ""
        else:
            fence = mark[1] if mark else ""
            yield line, bool(mark)


def prose(text: str) -> str:
    """Return the text without its code."""
    return "\n".join(line for line, is_code in lines(text) if not is_code)


# --- Links ---


def links(text: str) -> list[str]:
    """Return the targets of all links and images; those of other sites are left out."""
    without_code = re.sub(r"`[^`\n]*`", "", prose(text))
    targets = re.findall(r"\]\(\s*([^)\s]+)[^)]*\)", without_code)
    targets += re.findall(r"^ {0,3}\[[^\]]+\]:\s*(\S+)", without_code, re.MULTILINE)
    targets += re.findall(r"<(?:a|img)\s[^>]*?(?:href|src)=\"([^\"]+)\"", without_code)
    return [target for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target)]


def anchors(text: str) -> set[str]:
    """Return what a link may name after its #: headings as GitHub spells them, and ids."""
    text = prose(text)
    found = set(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", text))
    for title in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = 0
        while slug in found:
            count += 1
            slug = f"{base}-{count}"
        found.add(slug)
    return found


@pytest.mark.parametrize("page", LINKED, ids=str)
def test_every_link_leads_to_a_file_and_to_a_heading(page: Path) -> None:
    broken = []
    for link in links(read(page)):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


def test_the_readers_of_links_and_headings_work() -> None:
    text = "[a](b.md#c) ![d](e.png) `[no](code)` <https://x.org>\n[f]: g.md\n```\n[no](code)\n```\n"
    assert links(text + '[out](https://x.org) <a href="h.md">') == [
        "b.md#c",
        "e.png",
        "g.md",
        "h.md",
    ]
    headings = '# One: `two`, three-four\n## Same\n## Same\n<a id="five"></a>\n```\n# no\n```\n'
    assert anchors(headings) == {"one-two-three-four", "same", "same-1", "five"}
    assert len(LINKED) >= 9
    assert sum(len(links(read(page))) for page in LINKED) > 80


# --- Wrapping ---


def too_long(text: str) -> list[str]:
    """Return lines of prose beyond `COLUMNS`; tables, headings and images cannot be wrapped."""
    return [
        line
        for line in prose(text).splitlines()
        if len(line) > COLUMNS and not re.match(r"\s*(\||#|!\[|\[[^\]]*\]\([^)]*\)\S*$)", line)
    ]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_prose_is_wrapped(page: Path) -> None:
    assert too_long(read(page)) == []


def test_a_line_of_prose_that_is_too_long_is_found() -> None:
    words = "word " * 30
    link = f"[{'x' * 60}]({'y' * 60})"
    assert too_long(f"{words}\n| {words}|\n# {words}\n```\n{words}\n```\n![{words}](x.png)\n") == [
        words
    ]
    assert too_long(f"{link}.\nsee {link}\n") == [f"see {link}"]


# --- Commands ---


def commands(text: str) -> list[list[str]]:
    """Return the mll-flower commands in fences and between backquotes, as lists of words."""
    code = [line for line, is_code in lines(text) if is_code]
    sources = "\n".join(code).replace("\\\n", " ").splitlines()
    sources += re.findall(r"`(mll-flower [^`]+)`", " ".join(prose(text).split()))
    found = []
    for source in sources:
        if "mll-flower " not in source:
            continue
        lexer = shlex.shlex(source, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        for place, word in enumerate(words):
            if word == "mll-flower" and (place == 0 or words[place - 1] in ENDS_A_COMMAND):
                rest = words[place + 1 :]
                end = next((k for k, w in enumerate(rest) if w in ENDS_A_COMMAND), len(rest))
                found.append(rest[:end])
    return found


def unknown(words: list[str]) -> list[str]:
    """Return those words of a command that the command line does not know."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    names = [word for word in words if not word.startswith("-")]
    if names and names[0] == "COMMAND":
        return []
    command = group.commands.get(names[0]) if names else group
    if command is None:
        return names[:1]
    if command.context_settings.get("ignore_unknown_options"):
        return []  # it passes them on to a command of Flower's
    known = {"--help", "-h", *options(group), *options(command)}
    given = [word.partition("=")[0] for word in words if word.startswith("-")]
    return [option for option in given if option not in known]


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=str)
def test_every_command_and_option_exists(page: Path) -> None:
    assert [(words, wrong) for words in commands(read(page)) if (wrong := unknown(words))] == []


def test_commands_that_do_not_exist_are_found() -> None:
    text = (
        "```sh\npip install . && mll-flower run --tau 8 \\\n  --tua=3  # a comment\n"
        "mll-flower example-network > network.toml\npip install mll-flower\n```\n"
        "`mll-flower plots\nruns/a` and `mll-flower --version`\n"
    )
    assert commands(text) == [
        ["run", "--tau", "8", "--tua=3"],
        ["example-network"],
        ["plots", "runs/a"],
        ["--version"],
    ]
    assert [unknown(words) for words in commands(text)] == [["--tua"], [], ["plots"], []]
    named = {words[0] for page in WITH_COMMANDS for words in commands(read(page))}
    assert named >= {"run", "compare", "report", "network", "certs", "up", "status", "hub"}


# --- The README's table of rooms ---


def test_the_readme_names_every_room_and_no_other_folder() -> None:
    table = read(Path("README.md")).partition("## What is where\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    cells = " ".join(row.split("|")[1] for row in rows)
    entries = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", cells)
    assert [target for label, target in entries if not (ROOT / target).is_dir()] == []
    assert [label for label, target in entries if not target.endswith(label)] == []
    rooms = {f"mll_flower/{path.parent.name}/" for path in ROOT.glob("mll_flower/*/__init__.py")}
    assert {target for _, target in entries} == rooms
