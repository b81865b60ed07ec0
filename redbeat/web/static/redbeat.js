// Keeps the page as it is in Redis, counts down, shows times in the zone of the viewer, and shows
// what a rule would mean. The page does all but the counting without this file too.
"use strict";

(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  // Sweden writes dates as ISO 8601 does.
  const parts = {
    year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", hour12: false,
  };
  const clocks = {
    "": new Intl.DateTimeFormat("sv-SE", { ...parts, second: "2-digit" }),
    minute: new Intl.DateTimeFormat("sv-SE", parts),
  };
  const LATE = 10; // seconds, as in showing.py
  let offset = 0; // milliseconds by which the server is ahead of this computer

  const setClock = (body) => {
    if (body.dataset.now) offset = Date.parse(body.dataset.now) - Date.now();
  };

  const setText = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  const duration = (seconds) => {
    const parts = [];
    let rest = Math.abs(seconds);
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
      const count = Math.floor(rest / size);
      rest -= count * size;
      if (count) parts.push(`${count} ${unit}`);
    }
    return parts.slice(0, 2).join(" ");
  };

  const countDown = () => {
    const now = Date.now() + offset;
    for (const element of document.querySelectorAll("time[data-countdown]")) {
      const seconds = Math.round((Date.parse(element.dateTime) - now) / 1000);
      const text = duration(seconds);
      let words = seconds > 0 ? `in ${text}` : `${text} ago`;
      if (seconds < 0 && element.dataset.countdown === "next") words = "now";
      if (seconds < 0 && element.dataset.countdown === "due") {
        words = seconds > -LATE ? "now" : `${text} late`;
      }
      setText(element, seconds ? words : "now");
    }
  };

  const localize = () => {
    for (const element of document.querySelectorAll("time[data-local]")) {
      setText(element, clocks[element.dataset.local].format(new Date(element.dateTime)));
    }
    for (const element of document.querySelectorAll("[data-viewer-zone]")) setText(element, zone);
    countDown();
  };

  // -- replacing parts of the page: what is the same stays, and with it focus and selection ------

  const sameKind = (one, other) =>
    one.nodeType === other.nodeType && one.nodeName === other.nodeName;

  const morphAttributes = (from, to) => {
    for (const { name } of [...from.attributes]) {
      if (name !== "open" && !to.hasAttribute(name)) from.removeAttribute(name);
    }
    for (const { name, value } of [...to.attributes]) {
      if (name !== "open" && from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
  };

  const morphChildren = (from, to) => {
    const keyed = new Map();
    for (const child of from.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
    let place = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const key = wanted.dataset && wanted.dataset.key;
      let found = key ? keyed.get(key) : place;
      if (!key && found && found.dataset && found.dataset.key) found = null;
      if (!found || !sameKind(found, wanted)) {
        from.insertBefore(document.importNode(wanted, true), place);
        continue;
      }
      if (found === place) place = place.nextSibling;
      else from.insertBefore(found, place);
      morph(found, wanted);
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  };

  const morph = (from, to) => {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    if (from.matches("input:not([type=hidden]), textarea, select")) return; // what is being typed
    morphAttributes(from, to);
    morphChildren(from, to);
  };

  const replace = (page, selector) => {
    const focused = document.activeElement;
    for (const element of document.querySelectorAll(selector)) {
      const fresh = page.getElementById(element.id);
      if (fresh) morph(element, fresh);
    }
    if (focused && focused.isConnected && focused !== document.activeElement) {
      focused.focus({ preventScroll: true });
    }
    localize();
  };

  const load = async (url, options) => {
    const answer = await fetch(url, { credentials: "same-origin", ...options });
    const text = await answer.text();
    return [answer, new DOMParser().parseFromString(text, "text/html")];
  };

  // -- looking again ------------------------------------------------------------------------------

  const stale = document.getElementById("stale");
  let wait = parseFloat(document.body.dataset.poll);
  let preview = () => {}; // asks what the rule in the form would mean

  const say = (text) => {
    stale.hidden = !text;
    setText(stale, text);
  };

  const look = async () => {
    if (document.hidden) return;
    const url = location.href;
    try {
      const [answer, page] = await load(url);
      if (url !== location.href) return;
      if (answer.status === 404) { // deleted or finished: it will not come back by itself
        wait = 0;
        say(page.querySelector(".message:not(#stale)").textContent);
        return;
      }
      if (!answer.ok) {
        const title = page.querySelector("h1");
        say(`${title ? title.textContent : "No answer"}: what you see is no longer fresh.`);
        return;
      }
      say("");
      setClock(page.body);
      wait = parseFloat(page.body.dataset.poll) || wait;
      replace(page, "[data-live]");
      const first = document.querySelector("#preview time");
      if (first && Date.parse(first.dateTime) < Date.now() + offset) preview();
    } catch {
      say("The page cannot be reached: what you see is no longer fresh.");
    }
  };

  const again = () => {
    if (wait) setTimeout(async () => { await look(); again(); }, wait * 1000);
  };

  // -- forms --------------------------------------------------------------------------------------

  const later = (action, milliseconds) => {
    let timer;
    return () => {
      clearTimeout(timer);
      timer = setTimeout(action, milliseconds);
    };
  };

  const filter = document.getElementById("filter");
  if (filter) {
    const search = later(() => {
      const fields = [...new FormData(filter)].filter(([, value]) => value);
      const query = new URLSearchParams(fields).toString();
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
      look();
    }, 250);
    filter.addEventListener("input", search);
  }

  // What is in this <details> is needed less often: where there is little room it is opened on demand.
  const more = document.querySelector("#filter details");
  if (more) {
    const wide = matchMedia("(min-width: 44.01rem)");
    const used = ["task", "state", "static"].some((name) => filter.elements[name].value);
    const fit = () => { more.open = wide.matches || used; };
    wide.addEventListener("change", fit);
    fit();
  }

  const rule = document.getElementById("rule-form");
  if (rule) {
    let number = 0;
    preview = later(async () => {
      const own = ++number;
      const body = new URLSearchParams(new FormData(rule));
      try {
        const [answer, page] = await load(rule.dataset.preview, { method: "POST", body });
        if (!answer.ok || own !== number) return;
        replace(page, "#preview, #rule-error");
        const judged = page.getElementById("rule-form").elements;
        for (const field of rule.querySelectorAll("[aria-describedby]")) {
          field.toggleAttribute("aria-invalid", false);
          if (judged[field.name].hasAttribute("aria-invalid")) {
            field.setAttribute("aria-invalid", "true");
          }
        }
      } catch {
        say("The page cannot be reached: the preview is no longer right.");
      }
    }, 250);
    rule.addEventListener("input", preview);
  }

  // The server draws its charts in the zone of the viewer when it knows it.
  document.cookie = `redbeat_zone=${zone}; path=/; max-age=31536000; SameSite=Strict`;

  setClock(document.body);
  localize();
  setInterval(countDown, 1000);
  if (wait && document.body.dataset.zone !== zone) look();
  again();
})();
