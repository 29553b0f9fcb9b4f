// Start of the playground: makes its parts and connects them.

import { Chat } from "./chat.js";
import { CodeDialog } from "./code_dialog.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { Live } from "./live.js";
import { Models } from "./models.js";
import { Settings } from "./settings.js";
import { SettingsPanel } from "./settings_panel.js";
import { Shortcuts } from "./shortcuts.js";
import { Tabs } from "./tabs.js";
import { ThemeButton } from "./theme_button.js";

const conversation = new Conversation();
const settings = new Settings(() => models.load());
const panel = new SettingsPanel();
const code = new CodeDialog(() => Boolean(settings.key));
const models = new Models(settings, (problem) => chat.showListProblem(problem));
const chat = new Chat({
  conversation,
  settings,
  model: () => models.selected,
  openCode: (body) => code.open(body),
  onField: (name) => panel.pointAt(name),
});
const composer = new Composer(chat, () => chat.showCode(composer.text));
const live = new Live(settings);
new ThemeButton();

const pages = new Tabs(document.querySelector(".bar [role=tablist]"), (tab) => {
  const isLive = tab.id === "tab-live";
  byId("chat").hidden = isLive;
  byId("live").hidden = !isLive;
  document.body.classList.toggle("on-live", isLive);
  live.show(isLive);
  history.replaceState(null, "", isLive ? "#live" : location.pathname + location.search);
});

const shortcuts = new Shortcuts([
  { name: "Esc", key: "Escape", label: "Stop the answer", evenWriting: true, does: () => chat.running && chat.stop() },
  { name: "/", key: "/", label: "Go to the message field", does: () => composer.focus() },
  { name: "Alt N", code: "KeyN", alt: true, label: "Begin a new chat", does: () => composer.begin() },
  { name: "Alt R", code: "KeyR", alt: true, label: "Regenerate the answer", does: () => chat.regenerate() },
  { name: "Alt S", code: "KeyS", alt: true, label: "Show or hide the settings", does: () => panel.show(!panel.shown) },
  { name: "Alt L", code: "KeyL", alt: true, label: "Go to the live view and back", does: () => pages.select(byId(byId("live").hidden ? "tab-live" : "tab-chat")) },
  { name: "?", key: "?", label: "List the shortcuts", does: () => shortcuts.open() },
]);

// What has come of an answer is not lost with the page.
addEventListener("pagehide", () => conversation.keep());
models.load();
if (location.hash === "#live") pages.select(byId("tab-live"));
else composer.focus();
