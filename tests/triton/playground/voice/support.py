"""The page with a microphone and a loudspeaker, and what a test sees of both."""

from __future__ import annotations

from tests.triton.playground.browser import Playground

RATE = 24_000
"""Samples in a second of the voice."""
SENTENCE = "Paris is the capital of France."
HEARD = "paris is the capital of france"
"""What the microphone says, and what the recognizer hears."""
MOST_S = 9
"""Seconds of audio that the server takes."""
PHONE = {"width": 390, "height": 844}

OBSERVE = """
window.streams = [];
window.asked = 0;
const devices = navigator.mediaDevices;
if (devices) {
    const ask = devices.getUserMedia.bind(devices);
    devices.getUserMedia = async (wanted) => {
        window.asked += 1;
        const stream = await ask(wanted);
        window.streams.push(stream);
        return stream;
    };
}
window.sounds = [];
const { start, stop } = AudioScheduledSourceNode.prototype;
AudioBufferSourceNode.prototype.start = function () {
    const sound = { seconds: this.buffer.duration, ended: false, stopped: false };
    window.sounds.push(sound);
    this.addEventListener("ended", () => (sound.ended = true));
    this.stop = () => {
        sound.stopped = true;
        stop.call(this);
    };
    start.call(this);
};
"""
"""Keeps what the page asks of the microphone, and the sounds that it plays."""


def entered(playground: Playground) -> Playground:
    """The page with its key."""
    page = playground.page
    page.fill("#key", "secret")
    page.press("#key", "Tab")
    page.locator("#model option").first.wait_for(state="attached")
    page.wait_for_selector("#microphone:visible")
    return playground
