"""The playground in a real browser, on the server that most tests talk to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from openai_bls.launcher.testing import RunningServer
from tests.triton.playground.browser import Browser, Playground, opened

pytestmark = pytest.mark.triton

QUESTION = "What is a KV cache?"
SHORT = "Say this is a test"
# Lines of code that the button above them lies on.
COVERED = """() => {
    const [button, code] = [".code-block .button", ".code-block code"].map((found) => document.querySelector(found));
    const range = document.createRange();
    range.selectNodeContents(code);
    const place = button.getBoundingClientRect();
    return [...range.getClientRects()].filter((line) => line.top < place.bottom && line.bottom > place.top).length;
}"""
PHONE = {"width": 390, "height": 844}


def completion(client: openai.OpenAI, *questions_and_answers: str, **options: Any) -> Any:
    """The API's own answer to a conversation."""
    roles = ("user", "assistant") * len(questions_and_answers)
    messages: Any = [{"role": role, "content": text} for role, text in zip(roles, questions_and_answers, strict=False)]
    return client.chat.completions.create(model="demo", messages=messages, **options)


def answer(client: openai.OpenAI, *questions_and_answers: str, **options: Any) -> str:
    text: str = completion(client, *questions_and_answers, **options).choices[0].message.content
    return text


def test_an_answer_streams_in(playground: Playground, client: openai.OpenAI) -> None:
    playground.ask(QUESTION)
    whole = completion(client, QUESTION)
    assert playground.answers == [whole.choices[0].message.content]
    assert playground.questions == [QUESTION]
    [body] = playground.bodies
    assert body == {
        "model": "demo",
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stats = playground.page.inner_text(".stats")
    assert re.match(r"[\d.]+ m?s to first token · [\d,.]+ tokens/s · ", stats)
    assert f" {whole.usage.completion_tokens} tokens · {whole.usage.prompt_tokens} prompt tokens" in stats
    # The next question has the conversation with it.
    playground.ask("Tell me a joke.")
    assert playground.answers[1] == answer(client, QUESTION, playground.answers[0], "Tell me a joke.")
    assert playground.run("document.activeElement.id") == "prompt"


def test_settings_reach_the_request(playground: Playground) -> None:
    page = playground.page
    page.fill("#system", "You are a pirate.")
    page.click("#sampling-part summary")
    values = {"temperature": 0, "top_p": 0.5, "max_tokens": 200, "seed": 7, "top_k": 40, "min_p": 0.1}
    values |= {"presence_penalty": 0.25, "frequency_penalty": 0, "repetition_penalty": 1.5}
    for name, value in values.items():
        page.fill(f"#{name}", str(value))
    page.fill("#stop_strings", "\\n\\nnever\n\nsaid \\\\n")
    playground.ask("Hello!")
    [body] = playground.bodies
    assert body["messages"][0] == {"role": "system", "content": "You are a pirate."}
    assert {name: body[name] for name in values} == values
    assert body["stop"] == ["\n\nnever", "said \\n"]
    for name in ("presence_penalty", "repetition_penalty"):
        page.fill(f"#{name}", "")
    playground.act("Regenerate")
    playground.wait()
    assert playground.answers[-1].startswith("Arr!")
    # A preset keeps all of it; those of the page are of the sampling alone.
    page.click("#preset-save")
    page.fill("#preset-name", "Pirate")
    page.keyboard.press("Enter")
    page.select_option("#preset", "Exact")
    assert (page.input_value("#temperature"), page.input_value("#top_k")) == ("0", "")
    assert page.input_value("#system") == "You are a pirate."
    page.click("#settings-form [type=reset]")
    assert page.input_value("#system") == ""
    page.reload()
    page.select_option("#preset", "Pirate")
    assert (page.input_value("#system"), page.input_value("#min_p")) == ("You are a pirate.", "0.1")
    page.fill("#min_p", "0.2")
    assert page.input_value("#preset") == ""
    page.select_option("#preset", "Pirate")
    page.click("#preset-delete")
    assert page.locator("#preset option", has_text="Pirate").count() == 0
    page.fill("#max_tokens", "2")
    playground.act("Regenerate")
    playground.wait()
    assert "cut off at the token limit" in page.inner_text(".stats >> nth=-1")


def test_regenerate_edit_and_new_chat(playground: Playground, client: openai.OpenAI) -> None:
    page = playground.page
    playground.ask(SHORT)
    playground.ask("What is the capital of France?")
    page.locator(".message.assistant").first.get_by_role("button", name="Regenerate").click()
    playground.wait()
    # What followed it is gone.
    assert playground.questions == [SHORT]
    assert playground.bodies[2] == playground.bodies[0]
    page.keyboard.press("Alt+r")
    playground.wait()
    assert len(playground.bodies) == 4
    page.hover(".message.user")
    playground.act("Edit", ".message.user")
    page.fill(".message.user textarea", "What is 2+2?")
    page.keyboard.press("Enter")
    playground.wait()
    assert (playground.questions, playground.answers) == (["What is 2+2?"], [answer(client, "What is 2+2?")])
    playground.act("Edit")
    page.fill(".message.assistant textarea", "Five.")
    playground.act("Save")
    assert playground.answers == ["Five."]
    playground.ask("What is the capital of France?")
    assert playground.bodies[-1]["messages"][1] == {"role": "assistant", "content": "Five."}
    page.keyboard.press("Alt+n")
    page.wait_for_selector("#welcome:visible")
    assert playground.questions == []
    # It is not lost.
    page.go_back()
    page.wait_for_selector(".message.assistant")
    assert playground.answers[0] == "Five."


def test_a_chat_outlives_a_reload_and_a_key_the_tab_alone(playground: Playground) -> None:
    page = playground.page
    page.fill("#key", "sk-secret")
    page.fill("#system", "Be kind.")
    playground.ask("Tell me a joke.")
    told = playground.answers
    stats = page.inner_text(".stats")
    page.fill("#prompt", "half a mess")
    page.reload()
    page.wait_for_selector(".message.assistant")
    assert (playground.answers, page.inner_text(".stats")) == (told, stats)
    assert page.input_value("#system") == "Be kind."
    assert page.input_value("#prompt") == "half a mess"
    assert page.input_value("#key") == "sk-secret"
    assert "sk-secret" not in playground.run("JSON.stringify(localStorage) + document.cookie")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector(".message.assistant")
    assert other.input_value("#key") == ""
    other.close()


def test_json_by_a_schema(playground: Playground) -> None:
    page = playground.page
    page.select_option("#format", "json_schema")
    schema = {"type": "object", "properties": {"x": {"const": "<img src=/x onerror=alert(1)>"}}, "required": ["x"]}
    page.fill("#schema", json.dumps(schema)[:-1])
    assert page.inner_text("#schema-fault").startswith("Not JSON yet")
    playground.ask(QUESTION)
    assert playground.problem.startswith("The JSON schema cannot be read")
    assert playground.bodies == []
    assert page.input_value("#prompt") == QUESTION
    page.get_by_role("button", name="Show me where").click()
    assert playground.run("document.activeElement.id") == "schema"
    page.fill("#schema", json.dumps(schema))
    playground.ask(QUESTION)
    assert playground.problem == ""
    assert json.loads(playground.answers[0]) == {"x": "<img src=/x onerror=alert(1)>"}
    assert page.locator(".message img").count() == 0
    page.select_option("#format", "json_object")
    playground.ask('Give me a JSON object with name "Alice" and age 30.')
    assert playground.bodies[-1]["response_format"] == {"type": "json_object"}
    assert isinstance(json.loads(playground.answers[-1]), dict)


def test_log_probabilities(playground: Playground, client: openai.OpenAI) -> None:
    page = playground.page
    page.check("#logprobs")
    playground.ask("Tell me a joke.")
    whole = completion(client, "Tell me a joke.", logprobs=True, top_logprobs=5)
    text = whole.choices[0].message.content
    # Tokens that share an emoji are one piece.
    assert "".join(page.locator(".tokens .token").all_text_contents()) == text
    first = whole.choices[0].logprobs.content[0]
    page.hover(".tokens .token >> nth=0")
    shown = page.locator(".alternatives").first.locator("li code").all_text_contents()
    assert shown == [other.token.replace(" ", "·") for other in first.top_logprobs]
    assert page.locator(".alternatives .chosen code").first.text_content() == first.token
    assert page.locator(".tokens .token").first.get_attribute("data-level") == "0"
    # By the keyboard as well.
    page.focus(".tokens .token >> nth=0")
    page.keyboard.press("ArrowRight")
    second = whole.choices[0].logprobs.content[1].token
    assert page.locator(".alternatives .chosen code").first.text_content() == second.replace(" ", "·")
    playground.act("Tokens")
    assert playground.answers == [text]


def test_tools(playground: Playground) -> None:
    page = playground.page
    page.click("#tools-part summary")
    page.click("#tools-example")
    playground.ask("What's the weather in Paris?")
    assert page.inner_text(".tool-name") == "Calls get_weather"
    assert json.loads(page.inner_text(".tool-call pre")) == {"location": "Paris"}
    page.fill(".tool-call textarea", '{"temperature": 21, "condition": "sunny"}')
    playground.act("Send result")
    playground.wait()
    call, result = playground.bodies[1]["messages"][1:]
    assert call["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"location": "Paris"}'}
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert "21" in playground.answers[-1]
    page.select_option("#tool_choice", "none")
    playground.ask("Tell me a joke.")
    assert playground.bodies[-1]["tool_choice"] == "none"


def test_markdown(playground: Playground, client: openai.OpenAI) -> None:
    question = "How do I send a request with curl?"
    playground.ask(question)
    told = answer(client, question)
    assert playground.page.inner_text(".prose pre").rstrip() == told.removeprefix("```bash\n").removesuffix("\n```")
    playground.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    playground.act("Copy", ".code-block")
    assert playground.run("navigator.clipboard.readText()") == playground.page.text_content(".prose pre")
    playground.page.locator(".message.assistant .message-foot").get_by_role("button", name="Copy").click()
    assert playground.run("navigator.clipboard.readText()") == told


def test_suggestions_are_answered(playground: Playground) -> None:
    """By what the toy has learnt, and with no address, since it has learnt one where nothing is."""
    page = playground.page
    for number in range(page.locator(".suggestion").count()):
        page.click(f".suggestion >> nth={number}")
        playground.wait()
        assert "http" not in playground.answers[0]
        page.click("#list-new-chat")


def test_requests_to_copy_work(playground: Playground, server: RunningServer, client: openai.OpenAI) -> None:
    page = playground.page
    prompt = 'Repeat after me: it\'s "quoted" \\ $HOME `ls` 🚀'
    page.fill("#key", "it's a 'key'")
    page.fill("#prompt", prompt)
    page.fill("#max_tokens", "12")
    page.fill("#temperature", "0")
    page.click("#code-button")
    expected = answer(client, prompt, max_tokens=12, temperature=0)
    for form in ("curl", "Python", "generate_stream"):
        page.get_by_role("tab", name=form).click()
        text = page.inner_text("#code-text")
        assert "it's a 'key'" not in text
        assert "OPENAI_API_KEY" in text
        assert form != "generate_stream" or f":{server.ports.http}/" in text
        command = [sys.executable, "-c", text] if form == "Python" else ["bash", "-c", text]
        env = os.environ | {"OPENAI_API_KEY": "k"}
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120).stdout
        if form != "Python":
            events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")]
            chunks = events if form == "curl" else [json.loads(event["response"]) for event in events]
            said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        assert said.removesuffix("\n") == expected


def test_problems_have_sentences(playground: Playground) -> None:
    page = playground.page
    playground.run("document.querySelector('#model').add(new Option('gone', 'gone', true, true))")
    playground.ask(QUESTION)
    assert playground.problem == "The model “gone” is not served here."
    assert playground.failed_statuses == [404]
    page.select_option("#model", "demo")
    page.get_by_role("button", name="Show me where").click()
    assert playground.run("document.activeElement.id") == "model"
    playground.ask("one two three four " * 2000)
    assert playground.problem == "This conversation is too long for the model."
    page.click("#list-new-chat")
    page.wait_for_selector("#welcome:visible")
    assert playground.problem == ""
    page.fill("#temperature", "5")
    playground.ask(QUESTION)
    assert playground.problem == "The server refuses this request."
    assert "temperature" in page.inner_text("#problem .note")


SENTENCES = {
    401: "This server asks for a key.",
    413: "This message is larger than the server takes.",
    429: "There are too many requests just now.",
    500: "The server had an error.",
    503: "The server is busy or not ready yet.",
    504: "The model took too long.",
}


def test_every_status_has_a_sentence(modules: Playground) -> None:
    told = modules.run(
        """async (statuses) => {
            const { problemOf } = await import("/static/playground/problems.js");
            return statuses.map((status) => [status, problemOf(status, null, { retryAfter: "3" })])
                .map(([status, problem]) => [status, problem.title, problem.advice]);
        }""",
        list(SENTENCES),
    )
    assert {status: title for status, title, _ in told} == SENTENCES
    advice = {status: advice for status, _, advice in told}
    assert advice[429] == advice[503] == "Try again in 3 seconds."


def test_markdown_of_all_kinds(modules: Playground) -> None:
    text = (
        "# T\n\n3. a **b** `c`\n4. - [x] d\n\n> e\n\n| f | g |\n|---|--:|\n| 1 | 2 |\n\n"
        "[h](https://a.example) ![i](https://a.example/i.png)"
    )
    found = modules.run(
        """async (text) => {
            const { rendered } = await import("/static/playground/prose/markdown.js");
            const nodes = [...rendered(text).querySelectorAll("*")];
            return nodes.map((node) => node.cloneNode().outerHTML.replace(/<\\/.*/, ""));
        }""",
        text,
    )
    # Text of any script runs its own way.
    for tag in ("<h1", '<ol start="3"', "<blockquote", "<table"):
        assert f'{tag} dir="auto">' in found
    for tag in ("<strong>", "<code>", '<td align="right">'):
        assert tag in found
    assert any(tag.startswith("<input") and "checked" in tag and "disabled" in tag for tag in found)
    # An image is a link, which somebody must follow.
    links = [tag for tag in found if tag.startswith("<a ")]
    assert [re.findall(r'href="([^"]+)"', tag) for tag in links] == [["https://a.example"], ["https://a.example/i.png"]]


def test_a_wide_table_scrolls_and_its_words_stay_whole(modules: Playground) -> None:
    words = [f"characteristics{number}" for number in range(8)]
    text = f"|{'|'.join(words)}|\n|{'---|' * len(words)}\n|{'1|' * len(words)}"
    lines, scrolls = modules.run(
        """async (text) => {
            const { rendered } = await import("/static/playground/prose/markdown.js");
            const box = document.createElement("div");
            box.className = "prose";
            box.style.width = "20rem";
            box.append(rendered(text));
            document.getElementById("messages").append(box);
            const lines = [...box.querySelectorAll("th")].map((cell) => {
                const range = document.createRange();
                range.selectNodeContents(cell);
                return range.getClientRects().length;
            });
            const frame = box.querySelector(".table");
            const scrolls = frame.scrollWidth > frame.clientWidth && frame.clientWidth <= box.clientWidth;
            box.remove();
            return [lines, scrolls];
        }""",
        text,
    )
    assert lines == [1] * len(words)
    assert scrolls


# Each would run code, or ask another server, if it became what it wants to be.
ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "[a](javascript:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    "![a](https://elsewhere.example/x.png)",
    '![a](x" onerror="alert(1))',
    "<a href='https://elsewhere.example' onmouseover=alert(1)>a</a>",
    "<style>@import 'https://elsewhere.example/x.css'</style>",
    "<form action='https://elsewhere.example'><input name=x autofocus onfocus=alert(1)></form>",
    "```\n<img src=x onerror=alert(1)>\n```",
    "`<img src=x onerror=alert(1)>`",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <script>alert(1)</script> |",
    "<div id=settings><base href='https://elsewhere.example/'>",
    "[a]: https://elsewhere.example 'x\" onload=\"alert(1)'\n\n[a]",
]


def test_no_answer_becomes_code(modules: Playground) -> None:
    found = modules.run(
        """async (attacks) => {
            const { rendered } = await import("/static/playground/prose/markdown.js");
            const seen = [];
            for (const attack of [...attacks, attacks.join("\\n\\n")]) {
                const box = document.createElement("div");
                document.body.append(box);
                box.append(rendered(attack));
                await new Promise((resolve) => setTimeout(resolve, 5));
                for (const node of box.querySelectorAll("*")) {
                    for (const { name, value } of node.attributes) seen.push(`${node.localName} ${name} ${value}`);
                    seen.push(node.localName);
                }
                box.remove();
            }
            return [...new Set(seen)];
        }""",
        ATTACKS,
    )
    bad = r"script|img|svg|iframe|style|form|math|base|\w+ on\w+|\w+ id|a href (?!https?:|mailto:)"
    assert [item for item in found if re.match(bad, item) and not item.startswith("div ")] == []
    assert "a rel noopener noreferrer nofollow" in found


def test_a_phone(browser: Browser, server: RunningServer) -> None:
    with opened(
        browser, server.openai_url.removesuffix("v1"), viewport=PHONE, has_touch=True, is_mobile=True
    ) as playground:
        page = playground.page
        page.wait_for_selector("#model option", state="attached")
        assert playground.overflow() <= 0
        page.fill("#prompt", "How do I send a request with curl?")
        page.tap("#send")
        playground.wait()
        page.wait_for_selector(".stats")
        assert playground.overflow() <= 0
        assert playground.run(COVERED) == 0
        page.tap("#settings-button")
        assert page.is_visible("#key")
        page.select_option("#format", "json_schema")
        page.tap("#tools-part summary")
        assert playground.overflow() <= 0
        page.tap("#settings-close")
        assert not page.is_visible("#key")
        page.tap("#code-button")
        assert playground.overflow() <= 0
        page.tap("#code-close")
        page.tap("#tab-live")
        page.locator(".parts tbody tr").first.wait_for()
        assert playground.overflow() <= 0
        # Nothing sticks out of what it is in, either.
        wide = playground.run(
            """[...document.querySelectorAll("body *")]
                .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
                .map((node) => node.outerHTML.slice(0, 80))"""
        )
        assert wide == []


def test_keyboard_and_theme(playground: Playground) -> None:
    page = playground.page
    page.fill("#prompt", "one")
    page.press("#prompt", "Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo"
    assert playground.bodies == []
    page.fill("#prompt", "")
    page.click("h1")
    page.keyboard.press("?")
    assert page.is_visible("#shortcuts")
    page.keyboard.press("Escape")
    assert not page.is_visible("#shortcuts")
    page.keyboard.press("/")
    assert playground.run("document.activeElement.id") == "prompt"
    page.keyboard.press("Alt+l")
    assert page.is_visible("#live")
    page.keyboard.press("Alt+l")
    colours = set()
    for theme in ("light", "dark", "system"):
        page.click("#theme-button")
        assert playground.run("document.documentElement.dataset.theme") == theme
        colours.add(playground.run("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2
    page.click("text=API")
    page.wait_for_url(f"{playground.url}docs")
    assert page.inner_text("h1").startswith("openai_bls")
    assert playground.run("document.documentElement.dataset.theme") == "system"
    # The script of the page has run.
    assert playground.url in page.locator("figure code").first.inner_text()
    page.get_by_role("link", name="Playground").first.click()
    page.wait_for_url(playground.url)
    page.emulate_media(color_scheme="dark")
    assert playground.run("getComputedStyle(document.body).backgroundColor") in colours


def test_the_reference_is_filtered_and_tried(browser: Browser, server: RunningServer) -> None:
    with opened(browser, server.openai_url.removesuffix("v1"), "docs", viewport=PHONE) as reference:
        page = reference.page
        assert reference.overflow() <= 0
        everything = reference.run("document.documentElement.scrollHeight")
        page.fill("#filter", "tokenize nowhere")
        assert page.locator("main > section:visible").count() == 0
        page.fill("#filter", "POST tokenize")
        # The list has an endpoint once, which may have several paths.
        shown = page.locator("main > section:visible h3").all_inner_texts()
        assert shown
        assert all("tokenize" in text for text in shown)
        assert page.inner_text("#filter-count") == f"{len(shown)} found"
        listed = page.locator("nav li:visible a").all()
        assert listed
        assert all(page.locator(f"[id='{str(link.get_attribute('href'))[1:]}']").is_visible() for link in listed)
        assert reference.run("document.documentElement.scrollHeight") < everything / 4
        page.get_by_role("button", name="Try it").first.click()
        page.fill(".try textarea", json.dumps({"model": "demo", "prompt": "Hello"}))
        page.click(".try [type=submit]")
        page.wait_for_selector(".try [type=submit]:text('Send')")
        assert page.inner_text(".try [role=status]").startswith("200")
        assert json.loads(page.inner_text(".try pre"))["count"] > 0
        page.fill(".try textarea", "{")
        page.click(".try [type=submit]")
        page.wait_for_function("() => document.querySelector('.try [role=status]').textContent.startsWith('400')")
        page.fill("#filter", "")
        assert reference.run("document.documentElement.scrollHeight") >= everything
        assert reference.overflow() <= 0


def test_every_control_has_a_name(playground: Playground) -> None:
    playground.ask(QUESTION)
    nameless = playground.run(
        """[...document.querySelectorAll("button, input, select, textarea, dialog, section, aside")]
            .filter((node) => !node.ariaLabel && !node.labels?.length && !node.getAttribute("aria-labelledby")
                && !(node.localName === "button" && node.textContent.trim()))
            .map((node) => node.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    assert playground.page.inner_text("#status").startswith("Answer: The KV cache")


def test_the_live_view(playground: Playground, server: RunningServer) -> None:
    playground.ask("Tell me a joke.")
    page = playground.page
    page.keyboard.press("Alt+l")
    page.locator(".card:nth-child(4) .chart-line[d^=M]").wait_for(state="attached")
    values = page.locator(".card-value").all_text_contents()
    running, waiting, cache, throughput, first_token, _ = values
    assert all(re.fullmatch(r"\d+", value) for value in (running, waiting))
    assert re.fullmatch(r"[\d.]+%", cache)
    assert re.fullmatch(r"[\d,.]+", throughput)
    assert re.fullmatch(r"–|[\d.]+ m?s", first_token)
    rows = [tuple(row.split("\t")) for row in page.locator(".parts tbody tr").all_inner_texts()]
    assert ("demo", "up", "engine") in rows
    assert ("tensorrt_llm", "up", "Triton model") in rows
    assert any(row[:2] == ("chat.completions", "done") for row in rows)


def test_metrics_are_read_as_prometheus_reads_them(modules: Playground) -> None:
    text = httpx.get(f"{modules.url}metrics").text + 'odd{a="x\\"y\\\\z\\n,}",le="+Inf"} +Inf\nodd 3e-07 1700000000\n'
    expected: list[Any] = [
        [sample.name, dict(sample.labels), repr(sample.value)]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    names = sorted({name for name, _, _ in expected})
    found = modules.run(
        """async ([text, names]) => {
            const { Samples } = await import("/static/playground/live/prometheus.js");
            const samples = new Samples(text);
            return names.flatMap((name) => samples.of(name).map(({ labels, value }) => [name, labels, String(value)]));
        }""",
        [text, names],
    )
    plain = {"Infinity": "inf", "-Infinity": "-inf"}
    told = [[name, labels, repr(float(plain.get(value, value)))] for name, labels, value in found]
    assert sorted(json.dumps(row, sort_keys=True) for row in told) == sorted(
        json.dumps(row, sort_keys=True) for row in expected
    )
