"""Attacks by audio: small files of long silence."""

from __future__ import annotations

from tests.torture.attacks.alice import Alice
from tests.torture.server import SHARED_MEMORY_MB
from tests.torture.sounds import HEARS, MOST_SECONDS, RATE, silent_file

_KINDS = (("flac", 48_000, "stereo"), ("flac", 48_000, "7.1"), ("flac", 8000, "mono"), ("oga", 48_000, "stereo"))
"""Ending, samples per second and channels. The head of an Ogg file does not say how long it is."""
_FIT_SECONDS = SHARED_MEMORY_MB * 2**20 // (4 * RATE * 4)
"""Seconds of which the samples are a quarter of the server's shared memory, about what calls may have."""
_FORM = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + HEARS.encode() + b"\r\n"
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n--x--\r\n'
)


def long_audio(alice: Alice) -> None:
    """Files of up to and beyond the seconds that audio may have, or that have room, several at once."""
    form, rate, layout = alice.rng.choice(_KINDS)
    seconds = alice.rng.choice([alice.near(MOST_SECONDS, 2 * MOST_SECONDS), alice.near(_FIT_SECONDS, 2 * _FIT_SECONDS)])
    alice.note(f"{form} of {seconds} s, {rate} Hz, {layout}")
    body = _FORM % silent_file(form, seconds, rate, layout)
    alice.begin()

    def attack() -> None:
        while not alice.over():
            headers = {"content-type": "multipart/form-data; boundary=x"}
            alice.ask("POST", "/v1/audio/transcriptions", body, headers, alice.rng.choice([1.0, None]))

    alice.at_once([attack] * alice.rng.choice([2, 6, 24]))
