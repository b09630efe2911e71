// The archive of a session: its conversations as a chain, export, resume, deletion.

import { download, get, post } from "./api.js";
import { conversationReader } from "./conversation.js";
import { button, fill, h, newId } from "./dom.js";
import { historySearch } from "./history_search.js";
import { ago, dateTime, number, t } from "./i18n.js";
import { busy, confirmDialog, empty, failed, loading, note, toast } from "./ui.js";

function placeChip(conversation) {
  if (conversation.current) return h("span", { class: "chip chip-success" }, t("history.current"));
  return h("span", { class: "chip" }, t(conversation.in_host ? "history.inHost" : "history.archived"));
}

function nameOfConversation(conversation) {
  return conversation.title || t("history.untitled");
}

/** The tab; session.openMessage({conversation_id, id}) jumps to the place of a message. */
export function historyTab(session) {
  const sessionId = session.item.session_id;
  const messages = h("div", { "aria-live": "polite" });
  const list = h("div", { class: "stack" });
  const entries = new Map();
  let left = false;
  session.onLeave(() => { left = true; session.openMessage = null; });

  function exportButton(label, params, extension) {
    const name = `history-${new Date().toISOString().slice(0, 10)}.${extension}`;
    const control = button(label, () => busy(control, async () => {
      fill(messages);
      try {
        const { filename } = await download("history/export", { session_id: sessionId, ...params }, name);
        fill(messages, note("success", t("transfer.exported", { name: filename })));
      } catch (error) {
        fill(messages, note("error", error.message));
      }
    }), "text");
    return control;
  }

  async function resume(conversation) {
    const id = newId("current");
    const box = h("input", { type: "checkbox", id, class: "check", checked: true });
    const sure = await confirmDialog({
      title: t("history.resumeTitle"),
      body: [h("p", {}, t("history.resumeText", { title: nameOfConversation(conversation) })),
        h("div", { class: "field-check" }, h("label", { for: id }, t("history.makeCurrent")), box)],
      confirm: t("history.resume"),
    });
    if (!sure) return;
    try {
      await post("conversations/resume", { session_id: sessionId, conversation_id: conversation.conversation_id, make_current: box.checked });
      toast(t("history.resumed"), "success");
      await load();
    } catch (error) {
      fill(messages, note("error", error.message));
    }
  }

  async function forget() {
    const sure = await confirmDialog({
      title: t("history.deleteTitle"), body: h("p", {}, t("history.deleteText")), confirm: t("history.delete"), danger: true,
    });
    if (!sure) return;
    try {
      const { deleted } = await post("history/delete", { session_id: sessionId });
      toast(t("history.deleted", { count: number(deleted) }), "success");
      await load();
    } catch (error) {
      fill(messages, note("error", error.message));
    }
  }

  function entry(conversation) {
    const place = { session_id: sessionId, conversation_id: conversation.conversation_id };
    const reader = conversationReader(place, () => !left);
    const content = h("div", {});
    const span = conversation.first_at === conversation.last_at
      ? dateTime(conversation.last_at)
      : t("history.span", { first: dateTime(conversation.first_at), last: dateTime(conversation.last_at) });
    const details = h("details", { class: "card version", "data-conversation": conversation.conversation_id },
      h("summary", {},
        h("span", { class: "row-top" }, h("bdi", { class: "session-name" }, nameOfConversation(conversation)), placeChip(conversation)),
        h("span", { class: "row-meta" },
          h("time", { title: span }, ago(conversation.last_at)), h("span", {}, t("history.count", { count: number(conversation.messages) })))),
      content);
    const fillIn = () => {
      if (content.childElementCount) return false;
      fill(content, h("div", { class: "stack" },
        h("div", { class: "row" }, h("span", { class: "hint grow" }, span),
          h("div", { class: "row" },
            exportButton("JSON", { conversation_id: conversation.conversation_id, format: "json" }, "json"),
            exportButton("Markdown", { conversation_id: conversation.conversation_id, format: "markdown" }, "md"),
            button(t("history.resume"), () => resume(conversation), "tonal"))),
        reader.node));
      return true;
    };
    details.addEventListener("toggle", () => { if (details.open && fillIn()) reader.load(); });
    const show = (messageId) => {
      fillIn();
      details.open = true;
      return reader.show(messageId);
    };
    entries.set(conversation.conversation_id, show);
    return details;
  }

  function render(answer) {
    entries.clear();
    const off = answer.archive_enabled ? null : note("info", t("history.off"));
    if (!answer.items.length) {
      fill(list, off, empty(t("history.none"), t("history.noneHint")));
      return;
    }
    fill(list, off, answer.items.map(entry),
      h("div", { class: "row" },
        h("span", { class: "grow" }),
        exportButton(t("history.exportJson"), { format: "json" }, "json"),
        exportButton(t("history.exportMarkdown"), { format: "markdown" }, "md"),
        button(t("history.delete"), forget, "danger")));
  }

  async function load() {
    fill(list, loading());
    try {
      const answer = await get("conversations", { session_id: sessionId });
      if (left) return;
      render(answer);
      if (session.place) session.openMessage(session.place);
      session.place = null;
    } catch (error) {
      if (!left) fill(list, failed(error, load));
    }
  }

  session.openMessage = (hit) => entries.get(hit.conversation_id)?.(hit.id);
  const go = (hit) => (hit.session_id === sessionId ? session.openMessage(hit) : session.visit(hit));
  load();
  return h("div", { class: "stack" }, historySearch(sessionId, go, () => !left),
    h("p", { class: "hint" }, t("history.hint")), messages, list);
}
