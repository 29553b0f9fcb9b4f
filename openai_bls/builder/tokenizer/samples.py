"""Sample texts on which two tokenizers are compared."""

SAMPLES = (
    "Hello, world! How are you?",
    "  two spaces before, two  between, two after  ",
    "\ttabs\tand\nnew\n\n\nlines\r\n",
    "def f(x):\n    return x ** 2  # a comment\n",
    "1234567890 3.14159 1e-10 0xFF 12,345",
    "你好，世界！请问你叫什么名字？",
    "日本語のテキスト、한국어 텍스트",
    "Привет, мир! Γειά σου Κόσμε",
    "مرحبا بالعالم שלום עולם",
    "emoji 😀👩‍👩‍👧‍👦🇩🇪 and ﬁ ligature ① ２３",
    "don't, we'll, I'D, it's",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947",
    '{"key": ["value", null, true], "n": -1.5e3}',
    "a",
    " ",
    "e\u0301 and \u00e9",
    "Tiếng Việt, 2 ½ cups",
)
"""Texts that show what differences there are between tokenizers."""
