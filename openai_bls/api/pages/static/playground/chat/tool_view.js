// Tool calls of an answer: name, arguments, and a field for the result that the model waits for.

import { element } from "../ui/dom.js";

/** JSON in lines where it is whole, else as it is so far. */
export function inLines(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The calls as cards.
 * @param waits whether results can be entered
 * @param onResults takes the results, one for each call */
export function toolView(calls, waits, onResults) {
  const fields = [];
  const cards = calls.map((call, index) => {
    const card = element(
      "div",
      { className: "tool-call" },
      element("p", { className: "tool-name" }, "Calls ", element("code", { textContent: call.name })),
      element("pre", { tabIndex: 0, textContent: inLines(call.arguments) }),
    );
    if (call.result !== undefined) {
      card.append(element("p", { className: "note", textContent: "Result" }), element("pre", { tabIndex: 0, textContent: inLines(call.result) }));
    } else if (waits) {
      const field = element("textarea", {
        className: "input code",
        rows: 2,
        placeholder: "What the tool returns, such as {\"temperature\": 21}",
        "aria-label": `Result of ${call.name}, call ${index + 1}`,
      });
      fields.push(field);
      card.append(field);
    }
    return card;
  });
  const view = element("div", { className: "tool-calls" }, ...cards);
  if (fields.length) {
    const submit = () => onResults(fields.map((field) => field.value));
    view.append(element("button", { type: "button", className: "button small", textContent: fields.length > 1 ? "Send results" : "Send result", onclick: submit }));
  }
  return view;
}
