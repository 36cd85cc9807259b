"""Texts and mails that were made to keep a reader busy. Each held every door for seconds or minutes at some time."""

from __future__ import annotations

from collections.abc import Iterator

TELEGRAM_LIMIT = 4_096  # UTF-16 units of one message


def hostile_texts() -> Iterator[str]:
    """What a chat can carry: repeats of every class of character, near misses of patterns, nested markup."""
    yield "a" + "1" * 1333 + " 1 " + "1" * 2666 + "_"
    for piece in (
        " ",
        ".",
        "?",
        "a",
        "1",
        "_",
        "-",
        "é",
        "\n",
        "\t",
        "\u200b",
        "🙂",
        "a1_",
        "1 ",
        ", ",
        "and ",
        "$1,",
        "a@",
    ):
        yield "x" + piece * ((TELEGRAM_LIMIT - 2) // (len(piece.encode("utf-16-le")) // 2)) + "x"
    for piece in ("**", "*a_", "[a](", "<b>", "((", '"', "```", "~~", "https://", "12:", "1/1/", "+49 "):
        yield piece * (4_000 // len(piece))


def hostile_mails() -> Iterator[bytes]:
    """What a mailbox may hold: MIME, HTML and headers that libraries read in quadratic time."""
    html, multipart = b"Content-Type: text/html\r\n\r\n", b"Content-Type: multipart/mixed; boundary=x\r\n\r\n"
    yield html + b"<script>" + b"</script" * 49_000
    yield html + b"<!--" * 100_000
    yield html + b"<style>" * 100_000
    yield html + b"&#" + b"1" * 400_000
    yield html + b"<" * 400_000
    yield b"".join(b"X-%d: a%bb\r\n" % (number, b" " * 7_900) for number in range(99)) + b"\r\nx"
    yield b"".join(b"X-%d: %b\r\n" % (number, b"=?x?q?a" * 1_100) for number in range(99)) + b"\r\nx"
    yield b'Content-Type: text/plain; x="' + b";" * 1_000_000 + b"\r\n\r\nx"
    yield multipart + b"--x\r\n\r\n" * 300_000
    yield multipart + b'--x\r\nContent-Type: text/plain; x=";;;;;;;;"\r\n\r\nx\r\n' * 4_000
    levels = (b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (level, level) for level in range(60))
    yield b"".join(levels) + b"-\r\n" * 1_000_000
    yield b"Subject: " + b"(" * 500_000 + b"\r\n\r\nx"
    yield b"References: " + b"<a" * 500_000 + b"\r\n\r\nx"
    yield b"Subject: lines\r\n\r\n" + b"a\n" * 2_000_000
    yield b"Subject: dots\r\n\r\n" + b"." * 90_000
    yield b"Subject: questions\r\n\r\n" + b"?" * 50_000


def as_mail(body: bytes, *, number: int, sender: str, recipient: str) -> bytes:
    """The hostile part behind a head that a mail server would accept."""
    head = f"From: {sender}\r\nTo: {recipient}\r\nMessage-ID: <hostile-{number}@far.example>\r\nMIME-Version: 1.0\r\n"
    return head.encode() + body
