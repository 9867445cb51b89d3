// Dead letters work without this file; it adds a box that ticks all, counts, and a check while typing.
"use strict";

(() => {
  for (const form of document.querySelectorAll("form[data-ticks]")) {
    const head = form.querySelector("thead th.tick");
    const boxes = () => [...form.querySelectorAll("tbody input[type=checkbox]")];
    const all = document.createElement("input");
    all.type = "checkbox";
    all.setAttribute("aria-label", "Tick all on this page");
    head.append(all);
    const buttons = [...form.querySelectorAll("button[formaction]")];
    const words = buttons.map((button) => button.textContent);
    const tell = () => {
      const ticked = boxes().filter((box) => box.checked).length;
      all.checked = ticked > 0 && ticked === boxes().length;
      all.indeterminate = ticked > 0 && !all.checked;
      buttons.forEach((button, n) => {
        button.disabled = ticked === 0;
        const word = words[n].replace("…", "");
        button.textContent = `${word}${ticked ? ` ${ticked}` : ""}${words[n].endsWith("…") ? "…" : ""}`;
      });
    };
    all.addEventListener("change", () => {
      for (const box of boxes()) box.checked = all.checked;
      tell();
    });
    form.addEventListener("change", tell);
    window.addEventListener("pageshow", tell);
    tell();
  }

  for (const editor of document.querySelectorAll("textarea[data-json]")) {
    const said = document.getElementById("valid");
    let timer = 0;
    const check = () => {
      let problem = "";
      try {
        JSON.parse(editor.value); // only a check: the text is sent as it is, so no number is changed
      } catch (error) {
        problem = error.message;
      }
      said.textContent = problem ? `Not JSON: ${problem}` : "This is JSON.";
      said.className = problem ? "trouble" : "good";
      editor.setCustomValidity(problem ? `This is not JSON: ${problem}` : "");
      editor.setAttribute("aria-invalid", problem ? "true" : "false");
    };
    editor.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(check, 250);
    });
    editor.form.querySelector("button").addEventListener("click", check);
    check();
  }
})();
