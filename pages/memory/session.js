// One session: its head, its tabs, and the row they share.

import { get } from "./api.js";
import { button, fill, h } from "./dom.js";
import { draftBase, isDirty, onDrafts } from "./drafts.js";
import { ago, t } from "./i18n.js";
import { nameOf } from "./list.js";
import { compressTab } from "./tab_compress.js";
import { historyTab } from "./tab_history.js";
import { memoriesTab } from "./tab_memories.js";
import { memoryTab } from "./tab_memory.js";
import { nextTab } from "./tab_next.js";
import { settingsTab } from "./tab_settings.js";
import { versionsTab } from "./tab_versions.js";
import { transferView } from "./transfer.js";
import { failed, loading, tabs } from "./ui.js";

const TABS = {
  memory: memoryTab, memories: memoriesTab, compress: compressTab, versions: versionsTab, next: nextTab, history: historyTab, settings: settingsTab,
  transfer: (session) => transferView(session),
};

let lastTab = "memory";

/** Opens a session; back() returns to the list, changed() tells that its row moved,
 * visit() opens the session of a hit, and place is the hit to show first. */
export function createSession(item, { back, changed, visit, place = null }) {
  const node = h("article", { class: "session", "aria-label": nameOf(item) });
  const cleanups = new Set();
  let tabbed = null;

  const session = {
    item,
    row: null,
    health: null,
    visit,
    place,
    alive: true,
    /** Registers what must end with the current tab. */
    onLeave: (work) => cleanups.add(work),
    /** Takes a newer row of the server. */
    take(row) {
      session.row = row;
      changed(row);
    },
    async reload() {
      session.take(await get("session", { session_id: item.session_id }));
      return session.row;
    },
    /** The plugin's counts of the stored texts. */
    async counts() {
      const { items } = await get("sessions", { q: item.session_id, limit: 20 });
      const own = items.find((each) => each.session_id === item.session_id);
      if (own) Object.assign(item, own);
      return item;
    },
    show: (key) => tabbed?.select(key, true),
  };

  function leaveTab() {
    cleanups.forEach((work) => work());
    cleanups.clear();
  }

  function showTab(key) {
    leaveTab();
    lastTab = key;
    return TABS[key](session);
  }

  function head() {
    const mark = h("span", { class: "chip chip-warning", role: "status" }, t("list.unsaved"));
    const update = () => { mark.hidden = !isDirty(item.session_id); };
    update();
    session.stopDrafts?.();
    session.stopDrafts = onDrafts(update);
    return h("header", { class: "session-head" },
      button("‹", back, "icon", { class: "btn btn-icon back", "aria-label": t("action.back") }),
      h("div", { class: "grow" },
        h("h2", {}, h("bdi", {}, nameOf(item))),
        h("p", { class: "row-meta" },
          h("span", { class: `chip kind-${item.kind}` }, t(`kind.${item.kind}`)),
          h("bdi", { class: "clip" }, item.platform),
          h("span", {}, t("session.seen", { time: ago(item.last_seen_at) })),
          mark)));
  }

  async function load() {
    fill(node, head(), loading());
    try {
      [session.row, session.health] = await Promise.all([
        get("session", { session_id: item.session_id }), get("health").catch(() => null),
      ]);
    } catch (error) {
      if (session.alive) fill(node, head(), failed(error, load));
      return;
    }
    if (!session.alive) return;
    const items = Object.keys(TABS).map((key) => ({ key, title: t(`tab.${key}`) }));
    tabbed = tabs(items, lastTab, showTab, t("session.tabs"));
    fill(node, head(), tabbed.node);
  }

  return {
    node,
    load,
    sessionId: item.session_id,
    base: () => draftBase(item.session_id),
    close() {
      session.alive = false;
      session.stopDrafts?.();
      leaveTab();
    },
  };
}
