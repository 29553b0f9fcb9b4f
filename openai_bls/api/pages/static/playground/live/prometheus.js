// Reader of Prometheus's text format, and what is computed from it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$/;
const LABEL = /(?<!\w)([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/** Samples of a page of metrics, by name. */
export class Samples {
  #byName = new Map();

  constructor(text) {
    for (const line of text.split("\n")) {
      const match = line.startsWith("#") ? null : LINE.exec(line.trim());
      if (!match) continue;
      const labels = {};
      for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\[n"\\]/g, (escape) => ESCAPED[escape]);
      const value = match[3] === "+Inf" ? Infinity : match[3] === "-Inf" ? -Infinity : Number(match[3]);
      if (!this.#byName.has(match[1])) this.#byName.set(match[1], []);
      this.#byName.get(match[1]).push({ labels, value });
    }
  }

  /** Samples of a name, as { labels, value }. */
  of(name) {
    return this.#byName.get(name) ?? [];
  }

  /** Sum over all labels that `matches` takes; null if there is none. */
  sum(name, matches = () => true) {
    const found = this.of(name).filter(({ labels }) => matches(labels));
    return found.length ? found.reduce((sum, { value }) => sum + value, 0) : null;
  }

  /** The largest value; null if there is none. */
  max(name) {
    const values = this.of(name).map(({ value }) => value);
    return values.length ? Math.max(...values) : null;
  }

  /** Upper bound → how many observations a histogram has up to it, over all labels. */
  buckets(name) {
    const counts = new Map();
    for (const { labels, value } of this.of(`${name}_bucket`)) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + value);
    }
    return counts;
  }
}

/** Quantile of what a histogram has observed between two looks, by straight lines within its buckets; null if that is
 * nothing. */
export function quantile(share, now, before) {
  const grown = [...now].map(([bound, count]) => [bound, count - (before.get(bound) ?? 0)]).sort(([a], [b]) => a - b);
  const total = grown.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const rank = share * total;
  let [lower, below] = [0, 0];
  for (const [bound, count] of grown) {
    if (count >= rank && count > below) {
      // The last bucket has no end.
      return bound === Infinity ? lower : lower + ((bound - lower) * (rank - below)) / (count - below);
    }
    [lower, below] = [bound, count];
  }
  return null;
}
