// Live view: what /metrics says of the server, asked once a second while it is looked at.

import { metrics } from "../api/api.js";
import { Chart } from "./chart.js";
import { byId, element } from "../ui/dom.js";
import { count, duration } from "../ui/numbers.js";
import { Problem } from "../problems.js";
import { Samples, quantile } from "./prometheus.js";

const INTERVAL_MS = 1000;
/** Points of a chart: two minutes. */
const POINTS = 120;
/** Looks that quantiles go back. */
const WINDOW = 60;
/** Looks that rates go back: engines tell of themselves about once a second, so that one look more or less would be
 * nothing or twice as much. */
const RATE_WINDOW = 5;

const P = "openai_bls_";
const seconds = (value) => duration(value * 1000);
const percent = (value) => `${(value * 100).toFixed(value < 0.1 && value > 0 ? 1 : 0)}%`;
const whole = (value) => count(Math.round(value));

/** Growth of a counter per second. */
const rate = (name) => ({ now, before, elapsed }) => {
  const [is, was] = [now.sum(name), before?.sum(name) ?? null];
  // A server that has started again counts from 0.
  return is === null || was === null || is < was ? null : (is - was) / elapsed;
};
const firstToken = (share) => ({ now, past }) => quantile(share, now.buckets(`${P}time_to_first_token_seconds`), past.buckets(`${P}time_to_first_token_seconds`));

/** Cards: each line is a name and how it is taken from the looks. */
const CARDS = [
  { title: "Running", unit: "sequences in the batch", least: 4, format: whole, lines: [["", ({ now }) => now.sum(`${P}engine_sequences_running`)]] },
  { title: "Waiting", unit: "requests that wait", least: 4, format: whole, lines: [["", ({ now }) => now.sum(`${P}requests_waiting`)]] },
  { title: "KV cache", unit: "in use", least: 1, format: percent, lines: [["", ({ now }) => now.max(`${P}engine_kv_cache_usage_ratio`)]] },
  { title: "Throughput", unit: "tokens/s", least: 10, format: count, lines: [["", rate(`${P}engine_generated_tokens_total`)]] },
  { title: "Time to first token", unit: "median of the last minute", least: 0.01, format: seconds, lines: [["median", firstToken(0.5)], ["95%", firstToken(0.95)]] },
  { title: "Requests", unit: "ended per second", least: 1, format: count, lines: [["", rate(`${P}requests_total`)]] },
];

class Card {
  #lines;
  #series;
  #value = element("p", { className: "card-value" });
  #format;

  constructor({ title, unit, least, format, lines }) {
    [this.#lines, this.#format] = [lines.map(([, take]) => take), format];
    this.#series = lines.map(() => []);
    const names = lines.map(([name]) => name);
    this.chart = new Chart({ length: POINTS, least, format, names, label: `${title} in the last two minutes` });
    const legend = names.length > 1 ? element("p", { className: "card-legend note" }, ...names.map((name, index) => element("span", { className: `key-${index}`, textContent: name }))) : null;
    this.node = element("section", { className: "card", "aria-label": title }, element("h3", { textContent: title }), element("p", { className: "card-now" }, this.#value, element("span", { className: "note", textContent: unit })), this.chart.node, legend);
    this.clear();
  }

  add(looks) {
    const values = this.#lines.map((take) => (looks ? take(looks) : null));
    this.#series.forEach((series, index) => series.push(values[index]) > POINTS && series.shift());
    this.#value.textContent = values[0] === null ? "–" : this.#format(values[0]);
    this.chart.draw(this.#series);
  }

  clear() {
    this.#series.forEach((series) => (series.length = 0));
    this.#value.textContent = "–";
  }
}

export class Live {
  #settings;
  #looks = [];
  #timer = 0;
  #shown = false;
  #cards = CARDS.map((card) => new Card(card));
  #state = element("p", { className: "live-state", role: "status" });
  #parts = element("div", { className: "parts" });
  #told = "";

  /** @param settings has the key */
  constructor(settings) {
    this.#settings = settings;
    const head = element("div", { className: "live-head" }, element("h2", { textContent: "Live" }), this.#state);
    byId("live-content").append(head, element("div", { className: "cards" }, ...this.#cards.map((card) => card.node)), this.#parts);
    document.addEventListener("visibilitychange", () => this.show(this.#shown));
  }

  /** Starts or stops looking. */
  show(shown) {
    this.#shown = shown;
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (shown && !document.hidden) this.#look();
  }

  async #look() {
    const began = performance.now();
    this.#timer = setTimeout(() => this.#look(), INTERVAL_MS);
    const timer = this.#timer;
    let text = null;
    try {
      text = await metrics(this.#settings.key, AbortSignal.timeout(5 * INTERVAL_MS));
      this.#say("live", "Once a second");
    } catch (error) {
      const told = error instanceof Problem ? `${error.title} ${error.status === 401 ? error.advice : ""}` : "The server does not answer.";
      this.#say("lost", told.trim());
    }
    // Looked away, or the next look has overtaken this one.
    if (this.#timer !== timer) return;
    this.#add(text, began);
  }

  #say(state, text) {
    if (this.#state.textContent === text) return;
    this.#state.dataset.state = state;
    this.#state.textContent = text;
  }

  #add(text, at) {
    if (text === null) {
      this.#cards.forEach((card) => card.add(null));
      return;
    }
    const now = new Samples(text);
    const last = this.#looks.at(-1);
    // After a pause the charts begin anew.
    if (last && at - last.at > 10 * INTERVAL_MS) {
      this.#looks.length = 0;
      this.#cards.forEach((card) => card.clear());
    }
    const before = this.#looks.at(-RATE_WINDOW) ?? this.#looks[0];
    const looks = { now, before: before?.samples, elapsed: (at - before?.at) / 1000, past: this.#looks[0]?.samples ?? now };
    this.#cards.forEach((card) => card.add(looks));
    this.#looks.push({ at, samples: now });
    if (this.#looks.length > WINDOW) this.#looks.shift();
    this.#showParts(now);
  }

  /** The models of the server, and how the requests since its start ended. */
  #showParts(samples) {
    const models = samples.of(`${P}engine_up`).map(({ labels, value }) => [labels.model, value ? "up" : "down", "engine"]);
    const parts = samples.of(`${P}model_up`).map(({ labels, value }) => [labels.triton_model, value ? "up" : "down", "Triton model"]);
    const outcomes = new Map();
    for (const { labels, value } of samples.of(`${P}requests_total`)) {
      const key = `${labels.endpoint}\n${labels.outcome}`;
      outcomes.set(key, (outcomes.get(key) ?? 0) + value);
    }
    const ended = [...outcomes].sort().map(([key, value]) => [...key.split("\n"), whole(value)]);
    const told = JSON.stringify([models, parts, ended]);
    if (told === this.#told) return;
    this.#told = told;
    this.#parts.replaceChildren(
      table("Parts of the server", ["Name", "State", "Kind"], [...models, ...parts]),
      table("Requests since the start", ["Endpoint", "Outcome", "Count"], ended),
    );
  }
}

function table(title, names, rows) {
  const cell = (text, index) => element("td", { textContent: text, data: index === 1 ? { state: text } : {} });
  const body = rows.length ? rows.map((row) => element("tr", {}, ...row.map(cell))) : [element("tr", {}, element("td", { colSpan: names.length, textContent: "none yet" }))];
  return element(
    "section",
    { className: "card" },
    element("h3", { textContent: title }),
    element("table", {}, element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { textContent: name, scope: "col" })))), element("tbody", {}, ...body)),
  );
}
