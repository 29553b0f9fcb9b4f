"""Synthetic chats with tools: calls, results, several calls in one turn and no call at all.

Each family of tools (weather, time, sums, search, ...) makes a request: the schema that a client
would send, the user's words, the call, a result and the closing sentence. Names, argument names and
the JSON form of the schema vary, so that the model copies them from the prompt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from corpus import (
    Message,
    Sample,
    Tool,
    assistant,
    dump,
    is_chinese,
    plain_sample,
    pseudo_han,
    pseudo_name,
    pseudo_word,
    random_text,
    random_word,
    read_json,
    rough,
    single_turn,
    system_turn,
    user,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WEATHER_EN = (
    "What's the weather in {c}?",
    "What is the weather in {c}?",
    "What is the weather like in {c}?",
    "What's the weather like in {c} today?",
    "What is the weather like in {c} today?",
    "What is the weather in {c} today?",
    "How is the weather in {c}?",
    "How's the weather in {c} today?",
    "Weather in {c}",
    "Tell me the weather in {c}.",
    "Can you tell me the weather in {c}?",
    "Please get the weather for {c}.",
    "What's the temperature in {c}?",
    "Can you tell me what the temperature will be in {c}?",
    "Is it raining in {c}?",
    "Do I need an umbrella in {c}?",
    "Give me the current weather in {c}.",
    "What is the current weather in {c}?",
    "What will the weather be in {c} today?",
    "What's the weather in {c} right now?",
    "Show me the weather in {c}",
    "How hot is it in {c}?",
    "Use the tool to get the weather in {c}.",
    "Hi! What's the weather in {c}?",
    "Get the weather in {c} for me.",
    "What's the weather in {c}, please?",
    "What is the weather in {c} now?",
    "Can you check the weather in {c} for me, please?",
    "I live in {c}. How is the weather?",
    "How is the weather in {c} tomorrow?",
    "Will it rain in {c} tonight?",
)
WEATHER_EN_HELD_OUT = (
    "Please look up the weather in {c} for me.",
    "Would you kindly get me the weather in {c}?",
    "So, how is the weather over in {c}?",
    "Is it cold in {c} now?",
)
WEATHER_ZH = (
    "{c}天气怎么样？",
    "{c}今天天气怎么样？",
    "{c}的天气怎么样？",
    "{c}的天气如何？",
    "请问{c}天气如何？",
    "查一下{c}的天气。",
    "查询{c}天气",
    "{c}现在多少度？",
    "今天{c}会下雨吗？",
    "帮我查一下{c}的天气",
    "请告诉我{c}今天的天气。",
    "现在{c}的气温是多少？",
)
WEATHER_ZH_HELD_OUT = ("我想了解{c}的天气。", "请查询{c}今天的天气", "{c}这几天天气好吗？")

# Sentences put together from parts: many openings keep the model from expecting the city at a
# fixed place.
ASK_EN = (
    *("Could you ", "Can you ", "Please ", "Could you please ", "Can you please ", "", "Now "),
    *("I want you to ", "I need you to ", "Would you please ", "Let's ", "OK, ", "Will you "),
)
VERB_EN = (
    *("check", "get", "find", "fetch", "tell me", "show me", "give me", "find out", "look for"),
    *("request", "report", "describe", "look at"),
)
WHAT_EN = (
    *("the weather", "the current weather", "the weather report", "the temperature", "weather"),
    *("the weather forecast", "today's weather", "the current temperature", "the forecast"),
)
LEAD_EN = (
    *("", "Hi, ", "Hello! ", "Do you know ", "I wonder ", "I would like to know ", "Hey, "),
    *("Tell me ", "Quick question: ", "Good morning! ", "Please tell me ", "I'd like to know "),
    *("Well, ", "Can you tell me ", "Could you tell me ", "Any idea ", "I want to know "),
)
QUESTION_EN = (
    *("what the weather is", "what's the weather", "what is the weather", "how is the weather"),
    *("how the weather is", "what is the temperature", "what the temperature is"),
    *("what's the weather like", "what is the weather like", "what the weather is like"),
    *("is it warm", "is it hot", "is it sunny", "is it windy", "is it snowing", "does it rain"),
    *("what's the forecast", "how cold is it", "will it snow", "how are the conditions"),
)
WHEN_EN = (
    *("", "", "", " today", " now", " right now", " tomorrow", " this week", " for me"),
    *(" at the moment", " this morning", " tonight", " on Monday", " this weekend", ", please"),
)
TRIP_EN = (
    "I am going to {c}. What's the weather there?",
    "I'm in {c}. Is it raining?",
    "I am flying to {c} tomorrow. How is the weather there?",
    "We will visit {c} next week, what is the weather like?",
    "{c}: what is the weather?",
    "{c} weather",
    "{c} weather today",
)
LEAD_ZH = (
    *("", "", "你好，", "请问", "我想知道", "请告诉我", "帮我查一下", "请帮我查一下", "查查"),
    *("能告诉我", "你知道", "我要去", "请看看", "帮我看看", "我在", "今天", "现在", "明天"),
    *("请问今天", "麻烦查一下"),
)
TAIL_ZH = (
    *("天气怎么样？", "的天气怎么样？", "今天天气如何？", "的天气", "今天的天气。", "现在的天气"),
    *("热不热？", "会下雪吗？", "明天天气怎么样？", "的气温是多少？", "有多少度？", "冷不冷？"),
    *("的天气好吗？", "的天气情况"),
)

CONDITIONS = {
    "sunny": "晴",
    "cloudy": "多云",
    "rainy": "下雨",
    "snowy": "下雪",
    "windy": "有风",
    "foggy": "有雾",
    "clear": "晴朗",
}

NO_TOOL_EN = "I have no tool for that here. Please send me a fitting tool, and I will call it."
NO_TOOL_ZH = "我这里没有合适的工具。请在请求里带上工具，我就会调用它。"


@dataclass(frozen=True)
class Param:
    """One parameter of a function: its JSON schema and whether it must be given."""

    name: str
    schema: dict[str, Any]
    required: bool = True


@dataclass(frozen=True)
class Request:
    """One wish that one call fulfils."""

    question: str
    name: str
    description: str
    params: tuple[Param, ...]
    arguments: dict[str, Any]
    result: str
    answer: str
    topic: str = ""  # the city, where the request may be joined with one for another city


@dataclass
class Style:
    """How a client writes its schemas; one chat keeps one style."""

    strict: bool = False
    titles: bool = False
    describe: bool = True
    bare: bool = False
    order: list[int] = field(default_factory=lambda: [0, 1, 2])


def make_style(rng: random.Random) -> Style:
    """Return one of the ways in which clients write schemas."""
    order = [0, 1, 2]
    if rng.random() < 0.3:
        rng.shuffle(order)
    return Style(
        strict=rng.random() < 0.25,
        titles=rng.random() < 0.2,
        describe=rng.random() < 0.8,
        bare=rng.random() < 0.08,
        order=order,
    )


def tool_schema(request: Request, style: Style) -> Tool:
    """Return the JSON schema of the function as an OpenAI client sends it."""
    properties: dict[str, Any] = {}
    # A strict schema must require all of its properties, so its optional ones are left out.
    params = [
        param for param in request.params if not style.strict or param.required or param.name in request.arguments
    ]
    for param in params:
        schema = dict(param.schema)
        if not style.describe:
            schema.pop("description", None)
        if style.titles:
            schema["title"] = param.name.replace("_", " ").title()
        properties[param.name] = schema
    needed = [param.name for param in params if param.required or style.strict]
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": needed}
    if style.strict:
        parameters["additionalProperties"] = False
    if style.titles:
        parameters["title"] = request.name
    items = [
        ("name", request.name),
        ("description", request.description),
        ("parameters", parameters),
    ]
    function: dict[str, Any] = dict(items[index] for index in style.order)
    if style.strict:
        function["strict"] = True
    return function if style.bare else {"type": "function", "function": function}


def function_name(rng: random.Random, names: list[str], stem: str) -> str:
    """Return a usual name of the function, or an invented one that has to be copied."""
    pick = rng.random()
    if pick < 0.75:
        return rng.choice(names)
    if pick < 0.9:
        return f"{stem}_{pseudo_word(rng)}"
    return f"{pseudo_word(rng)}_{stem}"


def english_city(rng: random.Random, *, held_out: bool) -> str:
    """Return a held-out city, or a known one, or more often an invented one."""
    places = read_json("places.json")
    if held_out:
        return str(rng.choice(places["cities_en_heldout"]))
    if rng.random() < 0.6:
        city = pseudo_name(rng)
        if rng.random() < 0.3:
            first = rng.choice(["San", "New", "Port", "Saint", "Fort", "Los", pseudo_name(rng)])
            city = f"{first} {city}"
        return city
    return str(rng.choice(places["cities_en"]))


def chinese_city(rng: random.Random, *, held_out: bool) -> str:
    """Return a held-out Chinese city, or a known one, or more often an invented one."""
    places = read_json("places.json")
    if held_out:
        return str(rng.choice(places["cities_zh_heldout"]))
    if rng.random() < 0.6:
        return pseudo_han(rng)
    return str(rng.choice(places["cities_zh"]))


def composed_phrase(rng: random.Random, *, chinese: bool) -> str:
    """Return a question for the weather put together from parts, with ``{c}`` for the city."""
    if chinese:
        return rng.choice(LEAD_ZH) + "{c}" + rng.choice(TAIL_ZH)
    kind = rng.random()
    if kind < 0.15:
        return rng.choice(TRIP_EN)
    place = rng.choice([" in {c}", " in {c}", " for {c}", " of {c}", " at {c}"])
    if kind < 0.55:
        parts = [rng.choice(ASK_EN), rng.choice(VERB_EN), " ", rng.choice(WHAT_EN), place]
    else:
        parts = [rng.choice(LEAD_EN), rng.choice(QUESTION_EN), place.replace("of", "in")]
    phrase = "".join(parts) + rng.choice(WHEN_EN) + rng.choice("?.?")
    return phrase[0].upper() + phrase[1:]


def city_and_phrase(rng: random.Random, *, chinese: bool, held_out: bool) -> tuple[str, str]:
    """Return a city and the question for its weather, with ``{c}`` in place of the city."""
    if chinese:
        city = chinese_city(rng, held_out=held_out)
        if not held_out and rng.random() < 0.5:
            return city, composed_phrase(rng, chinese=True)
        return city, rng.choice(WEATHER_ZH_HELD_OUT if held_out else WEATHER_ZH)
    city = english_city(rng, held_out=held_out)
    if not held_out and rng.random() < 0.6:
        return city, composed_phrase(rng, chinese=False)
    return city, rng.choice(WEATHER_EN_HELD_OUT if held_out else WEATHER_EN)


def weather_result(rng: random.Random, city: str, *, chinese: bool, fahrenheit: bool) -> tuple[str, str]:
    """Return a result of the weather tool, JSON or text, and the sentence about it."""
    if rng.random() < 0.25:
        text = rng.choice(
            [
                f"{rng.randint(-10, 40)}°C and {rng.choice(list(CONDITIONS))}",
                f"{rng.choice(list(CONDITIONS))}, {rng.randint(-10, 99)} degrees",
                f"{rng.choice(list(CONDITIONS)).capitalize()}, {rng.randint(-10, 40)}°C",
                random_text(rng, 2, 8),
            ]
        )
        return text, f"{city}的天气：{text}" if chinese else f"The weather in {city}: {text}"
    degrees = rng.randint(-10, 40)
    unit = "°F" if fahrenheit else "°C"
    condition = rng.choice(list(CONDITIONS))
    value: Any = degrees
    pick = rng.random()
    if pick < 0.2:
        value = str(degrees)
    elif pick < 0.3:
        value = f"{degrees}{unit}"
    items: list[tuple[str, Any]] = [
        (rng.choice(["temperature", "temperature", "temp", "temp_c", "temperature_c"]), value)
    ]
    with_condition = rng.random() < 0.7
    if with_condition:
        shown = CONDITIONS[condition] if chinese and rng.random() < 0.5 else condition
        items.append((rng.choice(["condition", "weather", "conditions", "description"]), shown))
    if rng.random() < 0.4:
        items.append(("unit", "fahrenheit" if fahrenheit else "celsius"))
    if rng.random() < 0.2:
        items.append(("humidity", rng.randint(10, 99)))
    if rng.random() < 0.3:
        rng.shuffle(items)
    if rng.random() < 0.4:
        items.insert(0, (rng.choice(["city", "location"]), city))
    result = dump(dict(items))
    if chinese:
        end = f"，{CONDITIONS[condition]}。" if with_condition else "。"
        return result, f"{city}现在 {degrees}{unit}{end}"
    middle = f" and {condition}" if with_condition else ""
    return result, f"It is {degrees}{unit}{middle} in {city}."


def weather(rng: random.Random, *, chinese: bool, held_out: bool = False) -> Request:
    """Return a wish to know the weather in a city."""
    city, phrase = city_and_phrase(rng, chinese=chinese, held_out=held_out)
    names = [
        "get_weather",
        "get_weather",
        "get_current_weather",
        "get_current_weather",
        "weather",
        "fetch_weather",
        "getWeather",
        "query_weather",
        "get_weather_forecast",
        "lookup_weather",
        "current_weather",
    ]
    key = rng.choice(["city", "city", "location", "location", "place", "city_name", "town"])
    about = rng.choice(
        [
            "The city",
            "Name of the city",
            "City name, e.g. San Francisco",
            "The city and state, e.g. San Francisco, CA",
            "The city to find the weather for",
            "City and country e.g. Bogotá, Colombia",
            "城市名称",
        ]
    )
    params = [Param(key, {"type": "string", "description": about})]
    arguments: dict[str, Any] = {key: city}
    fahrenheit = special = False
    question = phrase.format(c=city)
    if not chinese and rng.random() < 0.12:
        state = rng.choice(["TX", "CA", "NY", "FL", "WA", "IL", "MA", "OR", "NV", "OH"])
        question = phrase.format(c=f"{city}, {state}")
        special = True
        if rng.random() < 0.5:
            state_about = "The two-letter abbreviation for the state, e.g. CA"
            params.append(Param("state", {"type": "string", "description": state_about}))
            arguments["state"] = state
        else:
            city = f"{city}, {state}"
            arguments[key] = city
    if rng.random() < 0.45:
        units = rng.choice([["celsius", "fahrenheit"]] * 3 + [["C", "F"], ["metric", "imperial"]])
        needed = rng.random() < 0.4
        unit_schema = {"type": "string", "enum": units}
        if rng.random() < 0.4:
            unit_schema["description"] = "The unit of the temperature"
        params.append(Param("unit", unit_schema, needed))
        pick = rng.random()
        if pick < 0.3:
            fahrenheit, special = pick < 0.2, True
            english = "Fahrenheit" if fahrenheit else "Celsius"
            shown = ("华氏度" if fahrenheit else "摄氏度") if chinese else f" in {english}"
            mark = question[-1] if question[-1] in "?？.。" else ""
            stem = question[: len(question) - len(mark)]
            question = f"{stem}{'，用' if chinese else ''}{shown}{mark}"
            arguments["unit"] = units[1 if fahrenheit else 0]
        elif needed:
            arguments["unit"] = units[0]
    elif rng.random() < 0.1:
        params.append(Param("days", {"type": "integer", "default": 1}, required=False))
    result, answer = weather_result(rng, city, chinese=chinese, fahrenheit=fahrenheit)
    description = rng.choice(
        [
            "Get the weather in a city",
            "Get the current weather",
            "Get the current weather in a given location",
            "Get current temperature for a given location.",
            "Returns the weather of a place.",
            "Fetch the current weather for a city.",
            "获取城市的天气",
        ]
    )
    return Request(
        question=question,
        name=function_name(rng, names, "weather"),
        description=description,
        params=tuple(params),
        arguments=arguments,
        result=result,
        answer=answer,
        topic="" if special else city,
    )


def clock(rng: random.Random, *, chinese: bool, held_out: bool = False) -> Request:
    """Return a wish to know the time in a city or in a time zone."""
    places = read_json("places.json")
    names = ["get_time", "get_time", "get_current_time", "current_time", "time_now", "getTime"]
    if chinese:
        city = chinese_city(rng, held_out=held_out)
        question = rng.choice(["{c}现在几点？", "现在{c}几点了？", "请问{c}现在的时间？", "我想知道{c}的时间"])
    else:
        city = english_city(rng, held_out=held_out)
        question = rng.choice(
            [
                "What time is it in {c}?",
                "What's the time in {c}?",
                "What is the time in {c}?",
                "Tell me the time in {c}.",
                "What is the current time in {c}?",
                "Time in {c}",
                "Could you tell me the time in {c}?",
                "Can you check what time it is in {c}?",
                "Please get the current time for {c}.",
                "Do you know what time it is in {c} now?",
                "I am in {c}. What time is it?",
            ]
        )
    key, value = rng.choice(["city", "location", "place"]), city
    about = rng.choice(["The city", "Name of the city"])
    if not chinese and not held_out and rng.random() < 0.35:
        key, about = "timezone", "The time zone, e.g. Europe/Paris"
        if rng.random() < 0.6:
            city = rng.choice(list(places["timezones"]))
            value = places["timezones"][city]
        else:
            city = value = rng.choice(list(places["timezones"].values()))
    time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    result = rng.choice([time, dump({"time": time}), dump({key: value, "time": time}), dump({"current_time": time})])
    return Request(
        question=question.format(c=city),
        name=function_name(rng, names, "time"),
        description=rng.choice(["Get the current time", "Get the time in a city", "Returns the time."]),
        params=(Param(key, {"type": "string", "description": about}),),
        arguments={key: value},
        result=result,
        answer=f"{city}现在是 {time}。" if chinese else f"It is {time} in {city}.",
    )


def number(rng: random.Random) -> int:
    """Return a random number of one to five digits."""
    return rng.randint(0, 10 ** rng.randint(1, 5) - 1)


def sums(rng: random.Random, *, chinese: bool, held_out: bool = False) -> Request:
    """Return a wish to calculate with two numbers, by ``add(a, b)`` or an expression."""
    del held_out  # random numbers are hardly ever seen twice
    a, b = number(rng), number(rng)
    sign, verb, noun, word, chinese_word = rng.choice(
        [
            ("+", "add", "sum", "plus", "加"),
            ("*", "multiply", "product", "times", "乘以"),
            ("-", "subtract", "difference", "minus", "减"),
        ]
    )
    gap = rng.choice([" ", " ", ""])
    term = f"{a}{gap}{sign}{gap}{b}"
    if chinese:
        question = rng.choice([f"{a}{chinese_word}{b}等于多少？", f"计算 {term}", f"{term}等于多少？"])
    else:
        question = rng.choice(
            [
                f"What is {term}?",
                f"What's {term}?",
                f"Calculate {term}",
                f"Compute {term}.",
                f"What is {a} {word} {b}?",
                f"Could you calculate {term}?",
                f"How much is {term}?",
                f"{term}",
                f"Use the tool to compute {term}",
                f"Please {verb} {a} and {b}." if sign != "-" else f"What is {a} minus {b}?",
            ]
        )
    value = {"+": a + b, "*": a * b, "-": a - b}[sign]
    shown = str(value)
    kind = {"type": rng.choice(["integer", "number"])}
    if rng.random() < 0.5:
        left, right = rng.choice([("a", "b"), ("a", "b"), ("x", "y"), ("num1", "num2")])
        params = [
            Param(left, {**kind, "description": "The first number"}),
            Param(right, {**kind, "description": "The second number"}),
        ]
        arguments: dict[str, Any] = {left: a, right: b}
        name = function_name(rng, [verb, verb, f"{verb}_numbers"], verb)
        description = rng.choice([f"{verb.capitalize()} two numbers", f"Returns the {noun}."])
    else:
        key = rng.choice(["expression", "expression", "expr", "formula"])
        params = [Param(key, {"type": "string", "description": "The expression, e.g. 2 + 3"})]
        arguments = {key: f"{a} {sign} {b}"}
        name = function_name(rng, ["calculator", "calculate", "eval_expression"], "calc")
        description = rng.choice(["Calculate an expression", "A calculator", "Do arithmetic."])
    return Request(
        question=question,
        name=name,
        description=description,
        params=tuple(params),
        arguments=arguments,
        result=rng.choice([shown, dump({"result": value})]),
        answer=f"{a} {sign} {b} = {shown}",
    )


def search(rng: random.Random, *, chinese: bool, held_out: bool = False) -> Request:
    """Return a wish to search the web for random words."""
    del held_out
    unknown = read_json("unknown.json")
    if chinese:
        query = "".join(rng.sample(unknown["topics_zh"], rng.randint(1, 2)))
        if rng.random() < 0.5:
            query = pseudo_han(rng, 2, 6)
        question = rng.choice(["搜索{q}", "帮我搜索{q}", "请搜索{q}。", "上网查一下{q}。"]).format(q=query)
    else:
        query = rng.choice(unknown["topics_en"])
        if rng.random() < 0.7:
            makers = [pseudo_word, pseudo_name, random_word]
            query = " ".join(rng.choice(makers)(rng) for _ in range(rng.randint(1, 4)))
        question = rng.choice(
            [
                "Search for {q}",
                "Search for {q}.",
                "Search the web for {q}.",
                "Please search for {q}.",
                "Look up {q} on the web.",
                "Use the search tool to find {q}.",
                "Could you search for {q}?",
                "Can you search the web for {q}, please?",
                "I want to find {q} on the internet.",
            ]
        ).format(q=query)
    key = rng.choice(["query", "query", "q", "text", "keywords"])
    found = random_text(rng, 2, 10)
    names = ["search", "search", "web_search", "search_web", "google_search"]
    return Request(
        question=question,
        name=function_name(rng, names, "search"),
        description=rng.choice(["Search the web", "Search for documents", "Web search."]),
        params=(Param(key, {"type": "string", "description": "What to search for"}),),
        arguments={key: query},
        result=rng.choice([found, dump({"result": found})]),
        answer=f"我找到了：{found}" if chinese else f"I found this: {found}",
    )


def others(rng: random.Random, *, chinese: bool = False, held_out: bool = False) -> Request:
    """Return a wish for a share price, a translation, a timer or a horoscope (English only)."""
    del chinese, held_out
    pick = rng.randrange(4)
    if pick == 0:
        known = ["AAPL", "NVDA", "MSFT", "GOOG", "AMZN", "TSLA"]
        coined = "".join(rng.choice("ABCDEFGHKLMNPRSTVXZ") for _ in range(rng.randint(3, 4)))
        symbol = rng.choice([*known, coined, coined])
        price = f"{rng.randint(1, 999)}.{rng.randint(1, 9)}{rng.randint(1, 9)}"
        key = rng.choice(["symbol", "ticker"])
        return Request(
            rng.choice(["What is the price of {} stock?", "Stock price of {}"]).format(symbol),
            function_name(rng, ["get_stock_price", "stock_price"], "stock"),
            "Get the price of a stock",
            (Param(key, {"type": "string", "description": "The ticker symbol"}),),
            {key: symbol},
            rng.choice([price, dump({"price": float(price)})]),
            f"The price of {symbol} is {price}.",
        )
    if pick == 1:
        text = random_text(rng, 1, 5).replace('"', "")
        language = rng.choice(["French", "German", "Spanish", "Chinese", "Japanese", "Italian"])
        result = random_text(rng, 1, 5)
        return Request(
            f'Translate "{text}" into {language}.',
            function_name(rng, ["translate", "translate_text"], "translate"),
            "Translate a text",
            (
                Param("text", {"type": "string"}),
                Param("target_language", {"type": "string", "description": "e.g. French"}),
            ),
            {"text": text, "target_language": language},
            result,
            f"The translation is: {result}",
        )
    if pick == 2:
        minutes = rng.randint(1, 120)
        return Request(
            rng.choice(["Set a timer for {} minutes.", "Start a {} minute timer."]).format(minutes),
            function_name(rng, ["set_timer", "start_timer"], "timer"),
            "Set a timer",
            (Param("minutes", {"type": "integer"}),),
            {"minutes": minutes},
            rng.choice(["ok", "done", dump({"status": "ok"})]),
            f"Done. The timer is set to {minutes} minutes.",
        )
    sign = rng.choice(
        [
            "Aries",
            "Taurus",
            "Gemini",
            "Cancer",
            "Leo",
            "Virgo",
            "Libra",
            "Scorpio",
            "Sagittarius",
            "Capricorn",
            "Aquarius",
            "Pisces",
        ]
    )
    text = random_text(rng, 2, 8)
    return Request(
        rng.choice(["What is my horoscope? I am an {}.", "Horoscope for {}"]).format(sign),
        function_name(rng, ["get_horoscope"], "horoscope"),
        "Get today's horoscope for an astrological sign.",
        (Param("sign", {"type": "string", "description": "An astrological sign like Taurus"}),),
        {"sign": sign},
        text,
        f"Your horoscope for {sign}: {text}",
    )


FAMILIES: dict[str, Callable[..., Request]] = {
    "weather": weather,
    "clock": clock,
    "sums": sums,
    "search": search,
    "others": others,
}


def pick_family(rng: random.Random) -> str:
    """Return the name of a tool family; weather is asked for most often."""
    return rng.choices(list(FAMILIES), [45, 15, 18, 12, 10])[0]


def make_request(rng: random.Random, family: str, *, held_out: bool = False) -> Request:
    """Return a request of the family, one in three in Chinese where the family knows Chinese."""
    chinese = family != "others" and rng.random() < 0.33
    return FAMILIES[family](rng, chinese=chinese, held_out=held_out)


def toolbox(rng: random.Random, used: list[Request], families: set[str]) -> tuple[Tool, ...]:
    """Return the schemas of the used functions among those of up to two other families."""
    style = make_style(rng)
    spare = [name for name in FAMILIES if name not in families]
    extra = rng.sample(spare, min(len(spare), rng.choice([0, 0, 0, 1, 1, 2])))
    requests = used + [make_request(rng, name) for name in extra]
    rng.shuffle(requests)
    unique = {request.name: request for request in requests}
    return tuple(tool_schema(request, style) for request in unique.values())


def call_message(rng: random.Random, requests: list[Request], text: str = "") -> Message:
    """Return the assistant turn that calls the functions.

    Clients send the arguments of earlier calls as JSON text, so some samples hold text: it renders
    to the same tokens.
    """
    calls = []
    for request in requests:
        arguments: Any = request.arguments
        if rng.random() < 0.5:
            arguments = dump(arguments)
        calls.append({"type": "function", "function": {"name": request.name, "arguments": arguments}})
    return {"role": "assistant", "content": text, "tool_calls": calls}


def closing(rng: random.Random, requests: list[Request]) -> tuple[Message, ...]:
    """Return the results of the calls and the assistant's sentence about them."""
    if rng.random() < 0.06:
        error = rng.choice(["city not found", "timeout", "not found", random_text(rng, 1, 4)])
        content = rng.choice([f"Error: {error}", dump({"error": error})])
        chinese = is_chinese(requests[0].question)
        text = f"对不起，工具报告了错误：{error}" if chinese else f"Sorry, the tool reported an error: {error}"
        if len(requests) == 1:
            return ({"role": "tool", "content": content}, assistant(text))
    results = [{"role": "tool", "content": request.result} for request in requests]
    chinese = is_chinese(requests[0].question)
    answer = "\n".join(request.answer for request in requests)
    return (*results, assistant(answer))


def joint(rng: random.Random, *, held_out: bool = False) -> tuple[str, list[Request]]:
    """Return one question that needs two or three calls of one weather function."""
    chinese = rng.random() < 0.3
    base = weather(rng, chinese=chinese, held_out=held_out)
    while not base.topic:
        base = weather(rng, chinese=chinese, held_out=held_out)
    key = next(iter(base.arguments))
    cities = [base.topic]
    for _ in range(rng.choice([1, 1, 1, 2])):
        city = (chinese_city if chinese else english_city)(rng, held_out=held_out)
        if city not in cities:
            cities.append(city)
    requests = []
    for city in cities:
        result, answer = weather_result(rng, city, chinese=chinese, fahrenheit=False)
        requests.append(
            Request(
                base.question,
                base.name,
                base.description,
                base.params,
                {**base.arguments, key: city},
                result,
                answer,
            )
        )
    if chinese:
        places = "和".join(["、".join(cities[:-1]), cities[-1]]) if len(cities) > 1 else cities[0]
        return rng.choice(["{}的天气怎么样？", "{}天气怎么样？", "查一下{}的天气。"]).format(places), requests
    places = " and ".join([", ".join(cities[:-1]), cities[-1]]) if len(cities) > 1 else cities[0]
    if len(cities) > 2 and rng.random() < 0.5:
        places = places.replace(" and ", ", and ")
    question = rng.choice(
        [
            "What's the weather in {}?",
            "What is the weather in {}?",
            "What's the weather like in {}?",
            "Tell me the weather in {}.",
            "weather in {}",
            "Weather in {}",
            "Compare the weather in {}.",
        ]
    )
    if rng.random() < 0.4 and not held_out:
        return composed_phrase(rng, chinese=False).format(c=places), requests
    return question.format(places), requests


def mixed(rng: random.Random) -> tuple[str, list[Request]]:
    """Return one question that needs the calls of two different functions."""
    first, second = weather(rng, chinese=False), clock(rng, chinese=False)
    if rng.random() < 0.4:
        second = sums(rng, chinese=False)
    head, tail = first.question.rstrip("?."), second.question
    return f"{head} and {tail[0].lower()}{tail[1:]}", [first, second]


def tool_turns(rng: random.Random, *, held_out: bool = False) -> tuple[list[Request], set[str], tuple[Message, ...]]:
    """Return the requests of one user turn, their families and the turn up to the call(s)."""
    pick = rng.random()
    if pick < 0.18:
        question, requests = joint(rng, held_out=held_out)
        families = {"weather"}
    elif pick < 0.23 and not held_out:
        question, requests = mixed(rng)
        families = {"weather", "clock", "sums"}
    else:
        family = pick_family(rng)
        requests = [make_request(rng, family, held_out=held_out)]
        question, families = requests[0].question, {family}
    text = ""
    if rng.random() < 0.1:
        # Only these words make the model speak before it calls, so that greedy decoding is sure.
        if is_chinese(question):
            question, text = f"先说明你要做什么：{question}", "好的，我来调用工具。"
        else:
            question, text = f"Say what you do first. {question}", "Sure, I will call a tool."
    if rng.random() < 0.15:
        question = question.rstrip("?.？。")
    return requests, families, (user(question), call_message(rng, requests, text))


def tool_call_sample(rng: random.Random, *, held_out: bool = False) -> Sample:
    """Return a chat with tools in which a function is called, often with the result as well."""
    requests, families, turns = tool_turns(rng, held_out=held_out)
    tools = toolbox(rng, requests, families)
    before: tuple[Message, ...] = ()
    if rng.random() < 0.12:
        question, answer = single_turn_without_call(rng)
        before = (user(question), assistant(answer))
    if rng.random() < 0.5:
        turns += closing(rng, requests)
        if rng.random() < 0.2:
            question, answer = single_turn_without_call(rng)
            turns += (user(question), assistant(answer))
    return Sample(messages=(*system_turn(rng), *before, *turns), tools=tools)


def single_turn_without_call(rng: random.Random) -> tuple[str, str]:
    """Return a question that no tool answers: no sum, which a calculator would be called for."""
    while True:
        question, answer = single_turn(rng)
        if " = " not in answer and "calculator" not in answer and "计算器" not in answer:
            return question, answer


def tools_unused_sample(rng: random.Random) -> Sample:
    """Return a chat with tools in which the question needs none of them, or has no fitting one."""
    families = rng.sample(list(FAMILIES), rng.randint(1, 3))
    style = make_style(rng)
    tools = tuple(tool_schema(make_request(rng, family), style) for family in families)
    missing = [name for name in ("weather", "clock", "search") if name not in families]
    if missing and rng.random() < 0.25:
        question, answer = no_tool_question(rng, rng.choice(missing))
    else:
        question, answer = single_turn_without_call(rng)
    return Sample(
        messages=(*system_turn(rng), user(question), assistant(answer)),
        tools=tools,
    )


def no_tool_question(rng: random.Random, family: str) -> tuple[str, str]:
    """Return a wish for a tool that is not there and the answer that says so."""
    question = make_request(rng, family).question
    if family == "weather" and rng.random() < 0.15:
        question, _ = joint(rng)
    return rough(rng, question), NO_TOOL_ZH if is_chinese(question) else NO_TOOL_EN


def no_tools_sample(rng: random.Random) -> Sample:
    """Return a chat without tools in which the user asks for the weather, the time or a search."""
    question, answer = no_tool_question(rng, rng.choice(["weather", "weather", "clock", "search"]))
    return Sample(messages=(*system_turn(rng), user(question), assistant(answer)))


def make_sample(rng: random.Random) -> Sample:
    """Return one training document of any kind."""
    pick = rng.random()
    if pick < 0.36:
        return tool_call_sample(rng)
    if pick < 0.43:
        return tools_unused_sample(rng)
    if pick < 0.46:
        return no_tools_sample(rng)
    return plain_sample(rng)


def make_corpus(seed: int, count: int) -> list[Sample]:
    """Return ``count`` documents; the same seed gives the same documents."""
    rng = random.Random(seed)
    return [make_sample(rng) for _ in range(count)]
