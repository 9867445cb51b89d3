// The dashboard works without this file; it adds live figures and keys.
"use strict";

(() => {
  const status = document.getElementById("live-status");
  const parts = status ? status.dataset.parts.trim() : "";

  // -- keys: "/" goes to the search, Escape leaves it

  document.addEventListener("keydown", (event) => {
    const at = document.activeElement;
    const typing = at && (at.matches("input, textarea, select") || at.isContentEditable);
    const search = document.getElementById("search");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && search) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape" && at === search && search) {
      search.blur();
    }
  });

  // A form is sent once, however often its button is pressed.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => {
    for (const form of document.forms) delete form.dataset.sent;
  });

  // Buttons with data-copy="id" copy the text of an element. Browsers have a clipboard on HTTPS and loopback only.
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    if (!source) return;
    await navigator.clipboard.writeText(source.textContent);
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  });

  if (!parts || !window.EventSource) return;

  // -- putting what the server has rendered into the page

  const parse = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html.trim();
    return template.content.firstElementChild;
  };

  // Replaces only what differs, and nothing that a person has the focus in.
  const renew = (old, fresh) => {
    if (old.tagName === "DETAILS") fresh.open = old.open;
    if (old.isEqualNode(fresh)) return;
    const focused = old.contains(document.activeElement) && old !== document.activeElement;
    if (old.tagName === fresh.tagName && old.children.length === fresh.children.length && old.children.length > 0
        && !old.matches("svg, figure")) {
      for (const name of fresh.getAttributeNames()) {
        if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
      }
      const others = [...fresh.children];
      [...old.children].forEach((child, n) => renew(child, others[n]));
      if (!old.isEqualNode(fresh) && !focused) old.replaceWith(fresh.cloneNode(true));
    } else if (!focused && old !== document.activeElement) {
      old.replaceWith(fresh.cloneNode(true)); // a copy: the caller still compares with the whole
    }
  };

  const arrange = (list, ids, made) => {
    const wanted = ids.map((id) => document.getElementById(id) || made.get(id)).filter(Boolean);
    const now = [...list.children];
    if (wanted.length === now.length && wanted.every((element, n) => element === now[n])) return;
    const keep = new Set(wanted);
    // A line without an id explains why a list is empty.
    for (const element of now) if (!keep.has(element) && (wanted.length || element.id)) element.remove();
    wanted.forEach((element, n) => {
      if (list.children[n] !== element) list.insertBefore(element, list.children[n] || null);
    });
  };

  const show = (said) => {
    const made = new Map();
    for (const [id, html] of Object.entries(said.html)) {
      const fresh = parse(html);
      if (!fresh) continue;
      const old = document.getElementById(id);
      if (old) renew(old, fresh); else made.set(id, fresh);
    }
    for (const [id, ids] of Object.entries(said.order)) {
      const list = document.getElementById(id);
      if (list) arrange(list, ids, made);
    }
  };

  // -- listening, while the tab is seen; saying how old the figures are

  let source = null;
  let heardAt = Date.now();
  let problem = "";

  const tell = () => {
    const age = Math.round((Date.now() - heardAt) / 1000);
    const isLive = age < 6 && !problem;
    status.classList.toggle("live", isLive);
    status.classList.toggle("stale", !isLive);
    const text = isLive ? "live" : `last figures ${age} s ago${problem ? `: ${problem}` : ""}`;
    if (status.textContent !== text) status.textContent = text;
  };

  const listen = () => {
    if (source || document.hidden) return;
    source = new EventSource(`live?parts=${encodeURIComponent(parts)}`);
    source.onmessage = (event) => {
      const said = JSON.parse(event.data);
      show(said);
      problem = said.error || "";
      if (!problem) heardAt = Date.now();
      tell();
    };
    source.onerror = () => {
      // A browser asks again by itself, unless the server refused; then it is asked again here.
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(listen, 3000);
      }
    };
  };

  const rest = () => {
    if (source) source.close();
    source = null;
  };

  document.addEventListener("visibilitychange", () => { if (document.hidden) rest(); else listen(); });
  window.addEventListener("pagehide", rest);
  setInterval(tell, 1000);
  tell();
  listen();
})();
