// One archived conversation, read by pages, also at the place of one of its messages.

import { get } from "./api.js";
import { button, fill, h } from "./dom.js";
import { dateTime, known, number, t } from "./i18n.js";
import { empty, failed, folded, loading } from "./ui.js";

const PAGE = 50;
const ROLES = ["user", "assistant", "system", "tool"];

function messageView(message) {
  const role = known(`role.${message.role}`) ? t(`role.${message.role}`) : message.role;
  return h("li", { class: `message role-${ROLES.includes(message.role) ? message.role : "other"}`, "data-message": message.id, tabindex: "-1" },
    h("div", { class: "row-meta" },
      h("strong", {}, role),
      message.sender ? h("bdi", { class: "clip" }, message.sender) : null,
      h("time", {}, dateTime(message.time)),
      message.in_host ? null : h("span", { class: "chip" }, t("history.gone"))),
    folded(message.text ?? ""));
}

/** The reader; show(messageId) goes to the place of a message. */
export function conversationReader(place, stillWanted) {
  const list = h("ol", { class: "messages" });
  const foot = h("nav", { class: "row", "aria-label": t("history.pages") });
  let shown = { offset: 0, total: 0 };

  function pageButton(label, offset, possible) {
    return button(label, () => load({ offset }), "tonal", { disabled: !possible });
  }

  function render(answer) {
    shown = answer;
    const { items, offset, total } = answer;
    if (!total) {
      fill(list, h("li", {}, empty(t("history.empty"))));
      fill(foot);
      return;
    }
    fill(list, items.map(messageView));
    const range = t("list.range", { first: number(offset + 1), last: number(offset + items.length), total: number(total) });
    fill(foot,
      pageButton(t("history.older"), Math.max(0, offset - PAGE), offset > 0),
      h("span", { class: "hint", role: "status" }, range),
      pageButton(t("history.newer"), offset + PAGE, offset + items.length < total));
  }

  async function load(where) {
    fill(list, h("li", {}, loading()));
    try {
      const answer = await get("history", { ...place, limit: PAGE, ...where });
      if (stillWanted()) render(answer);
    } catch (error) {
      if (stillWanted()) fill(list, h("li", {}, failed(error, () => load(where))));
    }
  }

  async function show(messageId) {
    await load({ around: messageId });
    const found = list.querySelector(`[data-message="${Number(messageId)}"]`);
    found?.classList.add("found");
    found?.focus();
    found?.scrollIntoView({ block: "center" });
  }

  return { node: h("div", { class: "stack" }, list, foot), load: () => load({ offset: shown.offset }), show };
}
