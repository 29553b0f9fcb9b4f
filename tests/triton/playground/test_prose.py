"""Prose of the playground: markdown that grows block by block, formulas, and the colours of code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.triton.playground.browser import Playground

pytestmark = pytest.mark.triton

TEXTS = [
    "# T\n\npara *a\nb*\r\n\r\nSet\n===\n\n```py\nx = 1\n\n\ny\n```\nafter\n\n    indented\n\n    more\n",
    "- a\n- b\n\n- loose\n  - in\n\n    deep\n\n1. x\n2. y\n\n   ```\n   code\n   ```\n3. z\n\nend",
    "| a | b |\n|---|--:|\n| 1 | `x|` |\n| 2 |\n\n> q\nlazy\n>\n> - l\n\n---\n\n<b>html</b>\n\n<div>\nblock\n\n</div>",
    "[a] and [b][c], later\n\n[a]: https://a.example 'x'\n\nmore\n\n[c]: https://c.example\n",
    "text:\n\\[\na\n- b\n= c\n\\]\nmore $x^2$ and $5 or $10\n\n$$\nx\n$$\n\n$$ never closed\n\nnext \\(y\\) \\$z\\$",
    "".join(f"{number}. item\n" for number in range(1, 131)) + "\nend",
    "- x\n" * 120 + "\n- loose\n",
]


def test_an_answer_that_grows_ends_as_if_it_had_come_at_once(modules: Playground) -> None:
    """Whatever its pieces were; while it grows nothing is lost of it, and what is settled is not made again."""
    found = modules.run(
        """async (texts) => {
            const { Prose } = await import("/static/playground/prose/prose.js");
            const { rendered } = await import("/static/playground/prose/markdown.js");
            const html = (node) => [...node.childNodes].map((child) => child.outerHTML ?? child.textContent).join("");
            const letters = (node) => node.textContent.replace(/\\W|Copy/g, "");
            // What a machine that pauses leaves plain for a while is another test's.
            const { now } = performance;
            performance.now = () => 0;
            const found = texts.map((text) => [1, 7, 40].map((step) => {
                const prose = new Prose();
                let lost = 0;
                for (let end = step; end < text.length + step; end += step) {
                    const before = letters(prose.node).length;
                    prose.grow(text.slice(0, end));
                    lost = Math.max(lost, before - letters(prose.node).length);
                }
                prose.finish(text);
                const whole = document.createElement("div");
                whole.append(rendered(text));
                return [html(prose.node) === html(whole), lost];
            }));
            performance.now = now;
            return found;
        }""",
        TEXTS,
    )
    assert [[same for same, _ in steps] for steps in found] == [[True] * 3] * len(TEXTS)
    # A definition of a link, a cell too many or a language is all that may go again.
    assert max(lost for steps in found for _, lost in steps) < 20


BLOCK = "## Part\n\nSome *prose* and `code`.\n\n- one\n- two\n\n```python\nx = 1\n```\n\n"
# Characters of HTML that are made safe, in relation to those of the answer; how many blocks are plain after each leap
# of the clock and before the end; whether those out of sight are not laid out.
GROWN = """async ([text, pieces, leaps]) => {
    const { Prose } = await import("/static/playground/prose/prose.js");
    const [sanitize, now] = [DOMPurify.sanitize, performance.now];
    let work = 0;
    DOMPurify.sanitize = (html, options) => {
        work += html.length;
        return sanitize.call(DOMPurify, html, options);
    };
    const prose = new Prose();
    const plain = () => prose.node.querySelectorAll(".plain").length;
    const shown = [];
    for (let piece = 1; piece <= pieces; piece++) {
        let looks = 0;
        if (leaps.includes(piece)) performance.now = () => now.call(performance) + 1000 * looks++;
        prose.grow(text.slice(0, (text.length * piece) / pieces));
        performance.now = now;
        if (leaps.includes(piece)) shown.push(plain());
    }
    shown.push(plain());
    prose.finish(text);
    DOMPurify.sanitize = sanitize;
    return [work / text.length, shown, prose.node.classList.contains("many")];
}"""


def test_the_work_for_a_long_answer_grows_as_it_does(modules: Playground) -> None:
    """Not once more with each piece."""
    work, _, many = modules.run(GROWN, [BLOCK * 400, 1000, []])
    assert work < 6
    assert many


def test_a_pause_of_the_machine_does_not_leave_an_answer_plain(modules: Playground) -> None:
    """Nor makes it the page safe all of the answer again with each piece."""
    work, plain, _ = modules.run(GROWN, [BLOCK * 400, 1000, [1, 10, 500, 900]])
    assert plain == [1, 1, 1, 1, 0]
    assert work < 6


def test_an_answer_that_is_plain_takes_any_character(modules: Playground) -> None:
    """One that the parser of HTML drops, too: nothing may be left of what was first shown."""
    found = modules.run(
        """async (texts) => {
            const { Prose } = await import("/static/playground/prose/prose.js");
            const { now } = performance;
            return texts.map((text) => {
                const prose = new Prose();
                let looks = 0;
                performance.now = () => now.call(performance) + 1000 * looks++;
                prose.grow(text);
                performance.now = now;
                const plain = prose.node.querySelectorAll(".plain").length;
                prose.grow(text + "x");
                prose.finish(text + "x");
                return [plain, prose.node.textContent.trim().at(-1)];
            });
        }""",
        ["\0\0\0", "a\0", " \u2028 b", "\ud800 c"],
    )
    assert found == [[1, "x"]] * 4


FORMULAS = (
    "$a^2$, \\(b\\), $5 or $10.\n\n$$\\frac{1}{2}$$\n\n\\[\n\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix} \\vec{v}\n\\]\n\n"
    "`$no$` and $\\fcolorbox{red}{blue}{x} \\pmb{y}$ and $\\unknown{z}$\n\n"
    "```python\ndef f(): return '<b>' # $x$\n```\n\n```nothing-known\n<i>x</i>\n```\n"
)
ATTACKS = [
    r"$\href{javascript:alert(1)}{x}$",
    r"$\url{javascript:alert(1)}$",
    r"$\includegraphics{https://elsewhere.example/x.png}$",
    r"$\htmlStyle{background:url(https://elsewhere.example/x)}{x}$",
    r"$\htmlData{onclick=alert(1)}{x} \htmlId{settings}{y} \htmlClass{z}{z}$",
    r"$\def\a{\a\a}\a$",
    r"$\rule{100000em}{100000em}$",
    r"$<img src=x onerror=alert(1)>$",
    "```html\n<img src=x onerror=alert(1)>\n```",
    "```js\n`</code></pre><script>alert(1)</script>`\n```",
]


def shown(modules: Playground, text: str) -> None:
    modules.run(
        """async (text) => {
            const { rendered } = await import("/static/playground/prose/markdown.js");
            const box = document.createElement("div");
            box.className = "prose";
            box.append(rendered(text));
            document.querySelector("#messages").replaceChildren(box);
        }""",
        text,
    )


def test_formulas_and_colours(modules: Playground) -> None:
    page = modules.page
    shown(modules, FORMULAS)
    page.wait_for_selector(".hljs-keyword")
    page.wait_for_function("() => document.querySelectorAll('.formula').length === 5")
    page.wait_for_function("() => document.querySelector('.prose .math')?.title")
    assert page.locator(".formula.display").count() == 2
    assert page.inner_text(".prose .math") == r"\unknown{z}"
    assert "$5 or $10." in page.inner_text(".prose p >> nth=0")
    assert page.inner_text(".prose p >> nth=1").startswith("$no$")
    assert page.text_content(".code-block pre >> nth=0") == "def f(): return '<b>' # $x$\n"
    assert page.locator(".code-block").evaluate_all("nodes => nodes.map((node) => node.dataset.language)") == [
        "python",
        "nothing-known",
    ]
    # KaTeX's own sizes hold, although the policy allows no style attributes.
    width: Any = modules.run("document.querySelector('.formula svg').getBoundingClientRect().width")
    assert 0 < width < 60
    assert modules.run("document.fonts.check('16px KaTeX_Main')")


def test_no_formula_becomes_code(modules: Playground) -> None:
    shown(modules, "\n\n".join(ATTACKS))
    page = modules.page
    # Each is drawn, or told why not.
    page.wait_for_function("() => [...document.querySelectorAll('.prose .math')].every((node) => node.title)")
    modules.run("document.querySelector('#scroll').scrollTop = 1e6")
    page.wait_for_selector(".hljs-tag")
    assert page.locator(".prose :is(a, img, script, [href], [src], [onclick], [onerror], [id])").count() == 0
    assert modules.run("document.querySelector('.prose').scrollWidth") < 20_000


# Marked takes the first by the square of its length, and calls itself for each level of the others.
SLOW_TEXTS = [
    "*a " * 40_000,
    "**a _b " * 20_000,
    "> " * 20_000 + "x",
    "- " * 20_000 + "x",
    "1. " * 10_000,
    "[a" * 20_000,
]
PARTS = (
    "*",
    "**",
    "_",
    "~~",
    "`",
    "```\n",
    "[",
    "](",
    "> ",
    "- ",
    "1. ",
    "| a ",
    "\n",
    "\n\n",
    "$",
    "$$",
    "\\",
    "<",
    "a",
    "\n|-|\n",
)
# Each look at the clock is a millisecond: so many tokens are read before a text is given up.
COUNTED = """async (texts) => {
    const { Prose } = await import("/static/playground/prose/prose.js");
    const { now } = performance;
    return texts.map((text) => {
        const prose = new Prose();
        const counts = [];
        const counted = (work) => {
            let looks = 0;
            performance.now = () => ++looks;
            work();
            counts.push(looks);
        };
        for (const part of [0.5, 0.75, 1]) counted(() => prose.grow(text.slice(0, text.length * part)));
        counted(() => prose.finish(text));
        performance.now = now;
        const plain = [...prose.node.querySelectorAll(".plain")].map((node) => node.textContent).join("");
        return [Math.max(...counts.slice(0, -1)), counts.at(-1), plain === text, prose.node.textContent.length];
    });
}"""


def test_a_text_that_takes_too_long_is_shown_as_it_was_written(modules: Playground) -> None:
    found = modules.run(COUNTED, SLOW_TEXTS)
    assert [plain for _, _, plain, _ in found] == [True] * len(SLOW_TEXTS)
    assert max(growing for growing, _, _, _ in found) <= 103
    assert max(whole for _, whole, _, _ in found) <= 1003


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("".join), min_size=1, max_size=8))
def test_no_text_is_read_for_longer_than_it_may_be(modules: Playground, pieces: list[str]) -> None:
    texts = [f"start {piece * (20_000 // len(piece))}" for piece in pieces]
    for piece, (growing, whole, _, length) in zip(pieces, modules.run(COUNTED, texts), strict=True):
        assert growing <= 103, piece
        assert whole <= 1003, piece
        assert length > 0, piece


def test_code_that_takes_too_long_stays_plain(modules: Playground) -> None:
    """Its worker is ended, and the next block has another one; the page's own turns go on meanwhile."""
    shown(modules, "```typescript\n" + "a" * 59_000 + "\n```\n\n```python\ndef f(): pass\n```\n")
    page = modules.page
    page.wait_for_selector(".hljs-keyword")
    assert page.locator(".code-block >> nth=0").locator("[class^=hljs]").count() == 0


@pytest.mark.parametrize("piece", ["|a|\n|-|\n\n", "- a\n", "*a* ", "$a$ ", "> a\n\n", "|a|b|\n|-|-|\n\n" + "|\n" * 9])
def test_the_elements_of_an_answer_are_bounded(modules: Playground, piece: str) -> None:
    """While it grows, and when it ends."""
    counts = modules.run(
        """async (text) => {
            const { Prose } = await import("/static/playground/prose/prose.js");
            const prose = new Prose();
            const counts = [];
            const count = () => counts.push(prose.node.querySelectorAll("*").length);
            for (let part = 1; part <= 8; part++) {
                prose.grow(text.slice(0, (text.length * part) / 8));
                count();
            }
            prose.finish(text);
            count();
            return counts;
        }""",
        piece * (48_000 // len(piece)),
    )
    assert max(counts) <= 5_001


def test_a_formula_or_code_of_too_many_parts_stays_as_it_is(modules: Playground) -> None:
    found = modules.run(
        """async ([formulas, codes]) => {
            const { drawMath } = await import("/static/playground/prose/math.js");
            const { colourCode } = await import("/static/playground/prose/code_colours.js");
            const box = document.createElement("div");
            const element = (name, fields) => Object.assign(document.createElement(name), fields);
            for (const text of formulas) box.append(element("pre", { textContent: text }));
            await Promise.all([...box.children].map(drawMath));
            const drawn = [...box.children].map(({ className }) => className);
            const coloured = [];
            for (const text of codes) {
                const code = element("code", { textContent: text, className: "language-python" });
                await colourCode(code);
                coloured.push(code.childElementCount > 0);
            }
            return [drawn, coloured];
        }""",
        [
            [f"\\begin{{matrix}}{'&' * count}\\end{{matrix}}" for count in (100, 4_900)],
            ["1+" * count for count in (100, 12_000)],
        ],
    )
    assert found == [["formula display", ""], [True, False]]
