// What is wrong with the page as it is now, as a list of words. Only what can be computed is checked.
() => {
  const found = [];
  const say = (what, element) => {
    const where = element ? `: ${element.outerHTML.replace(/\s+/g, " ").slice(0, 120)}` : "";
    found.push(what + where);
  };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const isShown = (element) => {
    if (!element.checkVisibility({ checkVisibilityCSS: true })) return false;
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && !element.closest(".hidden, .skip:not(:focus)");
  };
  const words = (text) => (text || "").replace(/\s+/g, " ").trim();

  // -- structure

  if (!document.documentElement.lang) say("no language");
  if (!words(document.title)) say("no title");
  for (const [selector, least, most] of [["h1", 1, 1], ["main", 1, 1], ["header", 1, 1], ["footer", 1, 1]]) {
    const number = all(selector).length;
    if (number < least || number > most) say(`${number} × ${selector}`);
  }
  const navs = all("nav");
  for (const nav of navs) {
    if (navs.length > 1 && !nav.getAttribute("aria-label")) say("nav without a name", nav);
  }
  let before = 1;
  for (const heading of all("h1, h2, h3, h4, h5, h6")) {
    const level = Number(heading.tagName[1]);
    if (level > before + 1) say(`heading skips a level`, heading);
    if (!words(heading.textContent)) say("empty heading", heading);
    before = level;
  }
  const ids = all("[id]").map((element) => element.id);
  for (const id of ids.filter((each, n) => ids.indexOf(each) !== n)) say(`id ${id} twice`);
  for (const name of ["for", "aria-labelledby", "aria-describedby", "aria-controls"]) {
    for (const element of all(`[${name}]`)) {
      for (const id of element.getAttribute(name).split(/\s+/)) {
        if (!document.getElementById(id)) say(`${name} leads nowhere`, element);
      }
    }
  }

  // -- names

  const nameOf = (element) => {
    const by = element.getAttribute("aria-labelledby");
    if (by) return words(by.split(/\s+/).map((id) => document.getElementById(id)?.textContent).join(" "));
    return words(element.getAttribute("aria-label"))
      || words([...(element.labels || [])].map((label) => label.textContent).join(" "));
  };
  for (const field of all("input:not([type=hidden]), select, textarea, progress")) {
    if (!nameOf(field)) say("field without a label", field);
  }
  for (const element of all("a[href], button, summary")) {
    if (!nameOf(element) && !words(element.textContent)) say("without a name", element);
  }
  for (const image of all("img:not([alt])")) say("image without a text", image);
  for (const svg of all("svg:not([aria-hidden=true])")) {
    if (svg.getAttribute("role") !== "img" || !nameOf(svg)) say("drawing without a name", svg);
  }
  for (const region of all("[role=region], [role=group], section")) if (!nameOf(region)) say("region without a name", region);

  // -- tables

  for (const table of all("table")) {
    if (!table.querySelector("thead th")) say("table without headers", table);
    for (const th of table.querySelectorAll("th")) if (!th.scope) say("header without scope", th);
    for (const th of table.querySelectorAll("thead th")) {
      if (!words(th.textContent) && !th.querySelector("input")) say("empty header", th);
    }
    const width = [...table.querySelectorAll("thead th")].length;
    for (const row of table.querySelectorAll("tbody tr")) {
      const cells = [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0);
      if (cells !== width) say(`row of ${cells} cells under ${width} headers`, row);
    }
  }

  // -- width: the page itself never scrolls sideways, and what scrolls can be reached by keys

  const page = document.documentElement;
  if (page.scrollWidth > window.innerWidth) {
    say(`the page is ${page.scrollWidth} px wide in a window of ${window.innerWidth}`);
    const isInside = (element) => {
      for (let each = element; each && each !== document.body; each = each.offsetParent) {
        if (each !== element && getComputedStyle(each).overflowX !== "visible") return true;
      }
      return false;
    };
    const widest = all("body *").find((element) =>
      element.getBoundingClientRect().right + window.scrollX > window.innerWidth + 1 && !isInside(element));
    if (widest) say(`reaches to ${Math.round(widest.getBoundingClientRect().right)} px`, widest);
  }
  for (const element of all("body *")) {
    if (element.scrollWidth <= element.clientWidth + 1 || !isShown(element)) continue;
    const how = getComputedStyle(element).overflowX;
    if ((how === "auto" || how === "scroll") && element.tabIndex < 0) say("scrolls but keys do not reach it", element);
    if (how === "hidden" || how === "clip") say("is cut off", element);
  }

  // -- contrast (WCAG 2 AA): text 4.5, large text 3, lines that carry a meaning 3

  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (colour) => {
    if (!known.has(colour)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      known.set(colour, [r, g, b, a / 255]);
    }
    return known.get(colour);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((each) => {
      const c = each / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const contrast = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((x, y) => y - x);
    return (light + 0.05) / (dark + 0.05);
  };
  const backgrounds = new Map();
  const backgroundOf = (element) => {
    if (!element) return rgba(getComputedStyle(document.body).backgroundColor);
    if (!backgrounds.has(element)) {
      const own = rgba(getComputedStyle(element).backgroundColor);
      backgrounds.set(element, own[3] >= 1 ? own : over(own, backgroundOf(element.parentElement)));
    }
    return backgrounds.get(element);
  };
  const told = new Set();
  const judge = (element, colour, least, what) => {
    let opacity = 1;
    for (let each = element; each; each = each.parentElement) opacity *= Number(getComputedStyle(each).opacity);
    const [r, g, b, a] = rgba(colour);
    const behind = backgroundOf(element);
    const seen = over([r, g, b, a * opacity], behind);
    const ratio = contrast(seen, behind);
    const key = `${what} ${colour} ${behind}`;
    if (ratio < least && !told.has(key)) {
      told.add(key);
      say(`contrast of ${what} is ${ratio.toFixed(2)}, not ${least}`, element);
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!words(walker.currentNode.data) || !element || element.closest("noscript, script, option, :disabled")) continue;
    if (!isShown(element)) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    judge(element, element.closest("svg") ? style.fill : style.color, isLarge ? 3 : 4.5, "text");
  }
  for (const field of all("input[placeholder]").filter(isShown)) {
    judge(field, getComputedStyle(field, "::placeholder").color, 4.5, "a placeholder");
  }
  for (const field of all("input:not([type=hidden]):not([type=checkbox]), select, textarea").filter(isShown)) {
    const behind = backgroundOf(field.parentElement);
    if (contrast(over(rgba(getComputedStyle(field).borderTopColor), behind), behind) < 3) say("edge of a field is faint", field);
  }
  for (const line of all("svg polyline, svg rect").filter(isShown)) {
    const style = getComputedStyle(line);
    judge(line, line.tagName === "rect" ? style.fill : style.stroke, 3, "a line");
  }
  for (const dot of all(".dot").filter(isShown)) {
    const behind = backgroundOf(dot.parentElement);
    if (contrast(rgba(getComputedStyle(dot).backgroundColor), behind) < 3) say("dot is faint", dot);
  }

  // -- focus: wherever keys lead, it is seen

  const at = document.activeElement;
  for (const element of all("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")) {
    if (element.disabled || !element.checkVisibility({ checkVisibilityCSS: true })) continue;
    element.focus({ preventScroll: true, focusVisible: true });
    if (document.activeElement !== element) { say("does not take the focus", element); continue; }
    const style = getComputedStyle(element);
    if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 1) say("focus is not seen", element);
    else if (contrast(rgba(style.outlineColor), backgroundOf(element.parentElement)) < 3) say("focus is faint", element);
  }
  if (at instanceof HTMLElement) at.focus(); else document.activeElement?.blur();
  document.activeElement?.blur();
  return found;
}
