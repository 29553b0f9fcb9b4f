// Line chart of the last two minutes, drawn as SVG; the value under the pointer is told beside it.

import { element, svgElement } from "../ui/dom.js";

const WIDTH = 240;
const HEIGHT = 64;
/** Room at the top and bottom for the line's own width. */
const EDGE = 2;

/** The least of 1, 2 or 5 times a power of ten that is not below `value`. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((bound) => bound >= value * 0.999);
}

export class Chart {
  #lines;
  #area = svgElement("path", { class: "chart-area" });
  #cursor = svgElement("path", { class: "chart-cursor" });
  #top = element("span", { className: "chart-top" });
  #told = element("output", { className: "chart-told" });
  #series = [];
  #format;
  #least;
  #length;

  /** @param options `length`: points from left to right; `least`: the axis goes up to this at least; `format` of a
   * value; `names` of the lines */
  constructor({ length, least, format, names, label }) {
    [this.#length, this.#least, this.#format] = [length, least, format];
    this.#lines = names.map((_, index) => svgElement("path", { class: `chart-line line-${index}` }));
    const drawing = svgElement(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      svgElement("path", { class: "chart-base", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }),
      this.#area,
      ...[...this.#lines].reverse(),
      this.#cursor,
    );
    this.node = element("div", { className: "chart" }, drawing, this.#top, this.#told);
    drawing.addEventListener("pointermove", (event) => this.#tell(event, names));
    drawing.addEventListener("pointerleave", () => this.#untell());
  }

  #x(index, count) {
    return ((this.#length - count + index) * WIDTH) / (this.#length - 1);
  }

  /** Draws arrays of numbers, of which the last is now; null is a gap. */
  draw(series) {
    this.#series = series;
    const highest = Math.max(this.#least, ...series.flat().filter((value) => value !== null));
    const top = roundUp(highest);
    this.#top.textContent = this.#format(top);
    const y = (value) => HEIGHT - EDGE - (value / top) * (HEIGHT - 2 * EDGE);
    series.forEach((values, number) => {
      const runs = [];
      let last = null;
      values.forEach((value, index) => {
        if (value !== null) {
          if (last === null) runs.push([]);
          runs.at(-1).push([this.#x(index, values.length), y(value)]);
        }
        last = value;
      });
      const path = (points) => points.map(([x, height]) => `${x.toFixed(1)} ${height.toFixed(1)}`).join("L");
      // A point alone is a dot, which a line to itself draws.
      this.#lines[number].setAttribute("d", runs.map((run) => `M${path(run.length > 1 ? run : [run[0], run[0]])}`).join(""));
      if (number) return;
      this.#area.setAttribute("d", runs.map((run) => `M${run[0][0].toFixed(1)} ${HEIGHT}L${path(run)}L${run.at(-1)[0].toFixed(1)} ${HEIGHT}Z`).join(""));
    });
  }

  #tell(event, names) {
    const box = event.currentTarget.getBoundingClientRect();
    const place = Math.round(((event.clientX - box.left) / box.width) * (this.#length - 1));
    const values = this.#series.map((line) => line[place - this.#length + line.length] ?? null);
    if (values.every((value) => value === null)) return this.#untell();
    const x = (place * WIDTH) / (this.#length - 1);
    this.#cursor.setAttribute("d", `M${x} 0V${HEIGHT}`);
    const ago = this.#length - 1 - place;
    const told = values.map((value, index) => `${names[index] && `${names[index]} `}${value === null ? "–" : this.#format(value)}`);
    this.#told.textContent = `${told.join(", ")} · ${ago ? `${ago} s ago` : "now"}`;
  }

  #untell() {
    this.#cursor.setAttribute("d", "");
    this.#told.textContent = "";
  }
}
