// Tables sort and filter, and a link opens the responses it leads to. Without this script the page reads the same.
(() => {
  const text = (row, column) => (row.cells[column]?.innerText ?? "").trim();
  const number = (value) => {
    const found = value.replace(/[\u2212\u2013]/g, "-").replace(/,/g, "").match(/[+-]?\d+(\.\d+)?/);
    return found ? parseFloat(found[0]) : NaN;
  };

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const first = [...body.rows];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
        heads.forEach((other) => (other.ariaSort = "none"));
        head.ariaSort = now;
        const numbers = first.some((row) => !isNaN(number(text(row, column)))) && column > 0;
        const key = (row) => (numbers ? number(text(row, column)) : text(row, column));
        const order = (a, b) => {
          const [x, y] = [key(a), key(b)];
          if (numbers && (isNaN(x) || isNaN(y))) return isNaN(x) - isNaN(y); // what has no number comes last
          return (x < y ? -1 : x > y ? 1 : 0) * (now === "ascending" ? 1 : -1);
        };
        body.append(...(now === "none" ? first : [...first].sort(order)));
      });
    });
  }

  function filterable(table) {
    const rows = [...table.tBodies[0].rows];
    const field = document.createElement("input");
    field.type = "search";
    field.className = "filter";
    field.placeholder = "Show rows with …";
    field.setAttribute("aria-label", "Show rows with these words");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row) => {
        row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      });
    });
    (table.closest(".scroll") ?? table).before(field);
  }

  for (const table of document.querySelectorAll("main table")) {
    const rows = table.tBodies[0]?.rows ?? [];
    const whole = table.tHead?.rows.length === 1 && !table.querySelector("tbody [rowspan], thead [colspan]");
    if (whole && table.tBodies.length === 1 && rows.length > 2) sortable(table);
    if (whole && table.tBodies.length === 1 && rows.length > 9) filterable(table);
  }

  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const holder = target && target.closest("details");
    if (holder) {
      holder.open = true;
      holder.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
