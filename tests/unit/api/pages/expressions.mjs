// Searches for attacks with expressions: node expressions.mjs < [{pattern, flags, attacks}] > the first slow one of each.

import { readFileSync } from "node:fs";

const { expressions, lengths, most } = JSON.parse(readFileSync(0, "utf8"));

/** CPU time in seconds of a search; of a long one the least of three. */
function seconds(expression, text) {
  let least = Infinity;
  for (let turn = 0; turn < 3; turn++) {
    const before = process.cpuUsage();
    expression.lastIndex = 0;
    expression.exec(text);
    const { user, system } = process.cpuUsage(before);
    least = Math.min(least, (user + system) / 1e6);
    if (least <= most || least > 1) break;
  }
  return least;
}

const slow = ({ pattern, flags, attacks }) => {
  const expression = new RegExp(pattern, flags);
  for (const [before, repeated, after] of attacks) {
    for (const length of lengths) {
      const text = before + repeated.repeat(Math.max(1, length / repeated.length)) + after;
      if (seconds(expression, text) > most) return [before, repeated, after, length];
    }
  }
  return null;
};

process.stdout.write(JSON.stringify(expressions.map(slow)));
