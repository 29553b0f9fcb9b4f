// Start of the playground: makes its parts and connects them.

import { Attachments } from "./chat/attachments.js";
import { Chat } from "./chat/chat.js";
import { Composer } from "./chat/composer.js";
import { CodeDialog } from "./code/code_dialog.js";
import { Library } from "./conversations/library.js";
import { ConversationList } from "./conversations/list.js";
import { Live } from "./live/live.js";
import { Models } from "./models.js";
import { Presets } from "./settings/presets.js";
import { Settings } from "./settings/settings.js";
import { byId } from "./ui/dom.js";
import { Shortcuts } from "./ui/shortcuts.js";
import { SidePanel } from "./ui/side_panel.js";
import { Tabs } from "./ui/tabs.js";
import { ThemeButton } from "./ui/theme_button.js";
import { Toast } from "./ui/toast.js";
import { Voice } from "./voice.js";

const settings = new Settings(() => models.load());
new Presets(settings);
const panel = new SidePanel("settings");
const drawer = new SidePanel("conversations");
const toast = new Toast();
const code = new CodeDialog(() => Boolean(settings.key));
const models = new Models(
  settings,
  (problem) => chat.showListProblem(problem),
  () => {
    attachments.refresh();
    composer.suggest(models.takesPictures);
    voice.refresh();
  },
);
const attachments = new Attachments(models);
const library = new Library({
  model: () => models.selected,
  onShown: (isRead) => chat.show(isRead),
  onChange: () => {
    chat.showRunning();
    list.mark();
  },
  onFault: () => toast.show("The browser does not keep this conversation; it may have no room left. Save it as a file before you close the page."),
});
const chat = new Chat({
  library,
  settings,
  model: () => models.selected,
  openCode: (body) => code.open(body),
  onField: (name) => panel.pointAt(name),
  read: (message) => voice.read(message),
});
const composer = new Composer(chat, library, attachments);
const voice = new Voice(models, {
  dictation: (Dictation) => new Dictation({ models, settings, composer }),
  reader: (Reader) => new Reader({ models, settings, onChange: (message) => chat.showReading(message), onFault: (sentence) => toast.show(sentence) }),
});
const list = new ConversationList({
  store: library.store,
  toast,
  current: () => library.current.id,
  runs: (id) => library.runs(id),
  onRemoved: (ids) => ids.includes(library.current.id) && composer.begin(),
});
const live = new Live(settings);
new ThemeButton();

const pages = new Tabs(document.querySelector(".bar [role=tablist]"), (tab) => {
  const isLive = tab.id === "tab-live";
  byId("chat").hidden = isLive;
  byId("live").hidden = !isLive;
  document.body.classList.toggle("on-live", isLive);
  live.show(isLive);
  if (isLive !== (location.hash === "#live")) history.replaceState(null, "", isLive ? "#live" : library.address);
});

const shortcuts = new Shortcuts([
  { name: "Esc", key: "Escape", label: "Stop the answer, or throw a dictation away", evenWriting: true, does: () => voice.drop() || (chat.running && chat.stop()) },
  { name: "/", key: "/", label: "Go to the message field", does: () => composer.focus() },
  { name: "Alt N", code: "KeyN", alt: true, label: "Begin a new chat", does: () => composer.begin() },
  { name: "Alt K", code: "KeyK", alt: true, label: "Search the conversations", does: () => drawer.pointAt("search") },
  { name: "Alt R", code: "KeyR", alt: true, label: "Regenerate the answer", does: () => chat.regenerate() },
  { name: "Alt S", code: "KeyS", alt: true, label: "Show or hide the settings", does: () => panel.show(!panel.shown) },
  { name: "Alt L", code: "KeyL", alt: true, label: "Go to the live view and back", does: () => pages.select(byId(byId("live").hidden ? "tab-live" : "tab-chat")) },
  { name: "F2", label: "Rename a conversation, in the list" },
  { name: "Delete", label: "Delete a conversation, in the list" },
  { name: "?", key: "?", label: "List the shortcuts", does: () => shortcuts.open() },
]);

// What has come of an answer is not lost with the page.
addEventListener("pagehide", () => library.keepAll());
addEventListener("visibilitychange", () => document.hidden && library.keepAll());
addEventListener("hashchange", () => {
  pages.select(byId(location.hash === "#live" ? "tab-live" : "tab-chat"));
  drawer.leave();
});
models.load();
library.takeOver();
library.openAddressed();
if (location.hash === "#live") pages.select(byId("tab-live"));
else composer.focus();
