// Refreshes open pages, counts down, shows times in the zone of the browser, and previews runs.
// Without JavaScript, users reload pages and times are in the zone of the app.
"use strict";

(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  // The Swedish locale formats dates as ISO 8601: 2026-01-31 09:00.
  const parts = {
    year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", hour12: false,
  };
  const clocks = {
    "": new Intl.DateTimeFormat("sv-SE", { ...parts, second: "2-digit" }),
    minute: new Intl.DateTimeFormat("sv-SE", parts),
  };
  const LATE = 10; // seconds, the same as LATE in values.py
  let offset = 0; // the server's clock minus the browser's, in milliseconds

  const updateOffset = (body) => {
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
      let phrase = seconds > 0 ? `in ${text}` : `${text} ago`;
      if (seconds < 0 && element.dataset.countdown === "next") phrase = "now";
      if (seconds < 0 && element.dataset.countdown === "due") {
        phrase = seconds > -LATE ? "now" : `${text} late`;
      }
      setText(element, seconds ? phrase : "now");
    }
  };

  const localize = () => {
    for (const element of document.querySelectorAll("time[data-local]")) {
      setText(element, clocks[element.dataset.local].format(new Date(element.dateTime)));
    }
    for (const element of document.querySelectorAll("[data-viewer-zone]")) setText(element, zone);
    countDown();
  };

  // -- updating the page in place: unchanged nodes stay, so focus and text selection survive ------

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
    let position = from.firstChild;
    for (const target of [...to.childNodes]) {
      const key = target.dataset && target.dataset.key;
      let existing = key ? keyed.get(key) : position;
      if (!key && existing && existing.dataset && existing.dataset.key) existing = null;
      if (!existing || !sameKind(existing, target)) {
        from.insertBefore(document.importNode(target, true), position);
        continue;
      }
      if (existing === position) position = position.nextSibling;
      else from.insertBefore(existing, position);
      morph(existing, target);
    }
    while (position) {
      const next = position.nextSibling;
      position.remove();
      position = next;
    }
  };

  const morph = (from, to) => {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    if (from.matches("input:not([type=hidden]), textarea, select")) return; // keep user input
    morphAttributes(from, to);
    morphChildren(from, to);
  };

  const replace = (page, selector) => {
    const focused = document.activeElement;
    for (const element of document.querySelectorAll(selector)) {
      const fresh = page.getElementById(element.id);
      if (fresh) morph(element, fresh);
    }
    countSelected();
    if (focused && focused.isConnected && focused !== document.activeElement) {
      focused.focus({ preventScroll: true });
    }
    localize();
  };

  const stale = document.getElementById("stale");

  const showStale = (text) => {
    stale.hidden = !text;
    setText(stale, text);
  };

  // Returns the response and its page. If the dashboard does not answer, returns no response and
  // warns that `what` is out of date.
  const load = async (what, url, options) => {
    let response, text;
    try {
      response = await fetch(url, { credentials: "same-origin", ...options });
      text = await response.text();
    } catch {
      showStale(`The dashboard does not answer. ${what} is out of date.`);
      return [];
    }
    return [response, new DOMParser().parseFromString(text, "text/html")];
  };

  // How old the page is, while the dashboard does not answer, for example because Redis is slow.
  let loaded = Date.now(), asked = 0;
  const showAge = () => {
    const isSlow = asked && Date.now() - asked > LATE * 500;
    if (!interval || (stale.hidden && !isSlow)) return;
    const cause = stale.hidden ? "The dashboard does not answer" : stale.textContent.split(". ")[0];
    showStale(`${cause}. This page is ${duration(Math.round((Date.now() - loaded) / 1000))} old.`);
  };

  const showProblem = (page, what) => {
    const title = page.querySelector("h1");
    showStale(`${title ? title.textContent : "Server error"}. ${what} is out of date.`);
  };

  // -- refreshing ---------------------------------------------------------------------------------

  let interval = parseFloat(document.body.dataset.poll); // seconds; NaN or 0: no refresh
  let preview = () => {}; // shows the next runs of the entry in the form

  const refresh = async () => {
    if (document.hidden) return;
    const url = location.href;
    asked = Date.now();
    const [response, page] = await load("This page", url);
    asked = 0;
    if (!response || url !== location.href) return; // the filter was changed in between
    if (response.status === 404) { // the entry is deleted or finished: stop refreshing
      interval = 0;
      showStale(page.querySelector(".message:not(#stale)").textContent);
      return;
    }
    if (!response.ok) {
      showProblem(page, "This page");
      return;
    }
    showStale("");
    loaded = Date.now();
    updateOffset(page.body);
    interval = parseFloat(page.body.dataset.poll) || interval;
    replace(page, "[data-live]");
    const first = document.querySelector("#preview time");
    if (first && Date.parse(first.dateTime) < Date.now() + offset) preview();
  };

  const keepRefreshing = () => {
    if (interval) setTimeout(() => refresh().finally(keepRefreshing), interval * 1000);
  };

  // -- forms --------------------------------------------------------------------------------------

  const debounce = (action, milliseconds) => {
    let timer;
    return () => {
      clearTimeout(timer);
      timer = setTimeout(action, milliseconds);
    };
  };

  const filter = document.getElementById("filter");
  if (filter) {
    const search = debounce(() => {
      const fields = [...new FormData(filter)].filter(([, value]) => value);
      const query = new URLSearchParams(fields).toString();
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
      refresh();
    }, 250);
    filter.addEventListener("input", search);
    filter.addEventListener("change", search);
    document.getElementById("search").hidden = true; // filters apply when they are changed
  }

  // The <details> holds rarely used filters: on narrow screens it stays closed until it is needed.
  const more = document.querySelector("#filter details");
  if (more) {
    const wide = matchMedia("(min-width: 44.01rem)");
    const used = ["task", "state", "last_result", "static"].some((name) => filter.elements[name].value);
    const fit = () => { more.open = wide.matches || used; };
    wide.addEventListener("change", fit);
    fit();
  }

  // Selecting entries: without JavaScript, users tick single entries.
  const boxes = () => [...document.querySelectorAll("#selection tbody input[type=checkbox]")];
  const countSelected = () => {
    const all = boxes(), label = document.getElementById("select-all");
    if (!label) return;
    const count = all.filter((box) => box.checked).length;
    label.hidden = false;
    label.querySelector("input").checked = count > 0 && count === all.length;
    setText(document.getElementById("selected"), count ? `${count} selected` : "");
  };
  document.addEventListener("change", ({ target }) => {
    if (target.closest("#select-all")) for (const box of boxes()) box.checked = target.checked;
    if (target.closest("#selection")) countSelected();
  });
  countSelected();

  const form = document.getElementById("entry-form");
  if (form) {
    let latest = 0;
    preview = debounce(async () => {
      const requestNumber = ++latest;
      const body = new URLSearchParams(new FormData(form));
      const options = { method: "POST", body };
      const [response, page] = await load("The preview", form.dataset.preview, options);
      if (!response || requestNumber !== latest) return; // a newer preview was requested
      if (!response.ok) {
        showProblem(page, "The preview");
        return;
      }
      showStale("");
      replace(page, "#preview, #entry-form .error");
      const validated = page.getElementById("entry-form").elements;
      for (const field of form.querySelectorAll("[aria-describedby]")) {
        field.toggleAttribute("aria-invalid", false);
        if (validated[field.name].hasAttribute("aria-invalid")) {
          field.setAttribute("aria-invalid", "true");
        }
      }
    }, 250);
    form.addEventListener("input", preview);
  }

  // The builder writes a crontab into the text field of the rule, where users can still change it.
  const builder = document.getElementById("builder");
  if (builder) {
    const value = (id) => document.getElementById(id).value;
    const crontab = () => {
      const [hour, minute] = (value("build-time") || "00:00").split(":").map(Number);
      const days = [...builder.querySelectorAll(".days input:checked")].map((day) => day.value);
      return {
        minutes: `*/${value("build-step")} * * * *`,
        hour: `${Number(value("build-minute"))} * * * *`,
        day: `${minute} ${hour} * * *`,
        week: `${minute} ${hour} * * ${days.join(",") || "*"}`,
        month: `${minute} ${hour} ${Number(value("build-monthday"))} * *`,
      }[value("build-repeat")];
    };
    const fit = () => { builder.hidden = form.elements.kind.value !== "cron"; };
    builder.addEventListener("input", () => {
      const repeat = value("build-repeat");
      for (const part of builder.querySelectorAll("[data-for]")) {
        part.hidden = !part.dataset.for.split(" ").includes(repeat);
      }
      if (repeat) form.elements.rule.value = crontab();
    });
    form.elements.kind.addEventListener("input", fit);
    fit();
  }

  // The server draws the charts, so it needs the zone of the browser.
  document.cookie = `redbeat_zone=${zone}; path=/; max-age=31536000; SameSite=Strict`;

  updateOffset(document.body);
  localize();
  setInterval(() => { countDown(); showAge(); }, 1000);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select") || !filter) return;
    event.preventDefault();
    filter.elements.q.focus();
    filter.elements.q.select();
  });
  if (interval && document.body.dataset.zone !== zone) refresh();
  keepRefreshing();
})();
