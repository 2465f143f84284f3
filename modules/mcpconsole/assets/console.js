// Updates the pages of the console. Without JavaScript the pages are complete, but static.
// Texts from servers are inserted as text, never as markup.
"use strict";
(() => {
	const maxRows = 200;
	const reloadEvery = 5000; // milliseconds, at least
	const settable = new Set(["class", "d", "width", "height", "x", "y", "points", "title", "aria-label", "value", "datetime"]);

	const main = document.getElementById("main");
	const byID = (id) => document.getElementById(id);

	let stream = null; // the open EventSource
	let stale = false; // changes may have been missed
	let paused = false; // by the user
	let touched = false; // the user has changed a field of a form
	let leaving = false; // the user has followed a link or sent a form, and the server has not responded yet
	let reloading = 0; // timer of a pending reload

	// say shows the state of the stream. Screen readers announce changes.
	const say = (text, kind) => {
		const live = byID("live");
		if (live.textContent !== text) {
			live.textContent = text;
			live.className = kind;
		}
	};

	// reload reloads the page, but not too often, and not if that would lose what the user does.
	const reload = () => {
		if (touched || paused || reloading) {
			return;
		}
		const wait = reloadEvery - performance.now(); // since the page was loaded
		reloading = setTimeout(() => {
			reloading = 0;
			if (!touched && !paused && !leaving) {
				location.reload();
			}
		}, Math.max(0, wait));
	};

	// show shows a time: relative if it is less than a day ago, else as local time.
	const show = (time) => {
		const at = new Date(time.dateTime);
		if (isNaN(at)) {
			return;
		}
		if (!time.title) {
			time.title = at.toLocaleString();
		}
		const seconds = Math.round((Date.now() - at) / 1000);
		const text = seconds < 0 || seconds >= 86400 ? at.toLocaleString() :
			seconds < 5 ? "just now" :
			seconds < 60 ? seconds - seconds % 5 + " s ago" :
			seconds < 3600 ? Math.floor(seconds / 60) + " min ago" :
			Math.floor(seconds / 3600) + " h ago";
		if (time.textContent !== text) {
			time.textContent = text;
		}
	};
	const showTimes = () => document.querySelectorAll("time[datetime]").forEach(show);

	// setText changes the text of an element. Times are formatted by show.
	const setText = (element, text) => {
		if (element.localName !== "time") {
			element.textContent = text;
		}
	};

	// addRow adds a row at the top of the table.
	const addRow = (rows, template, row) => {
		if (byID(row.id)) {
			return;
		}
		const tr = template.content.firstElementChild.cloneNode(true);
		tr.id = row.id;
		tr.className = (row.class || "") + " new";
		tr.querySelectorAll("[data-cell]").forEach((cell) => {
			const text = row.cells[cell.dataset.cell] || "";
			if (cell.localName === "time") {
				cell.dateTime = text;
				show(cell);
			} else {
				cell.textContent = text;
			}
		});
		const link = tr.querySelector("a");
		if (link && row.link && /^\/(?!\/)/.test(row.link)) {
			link.setAttribute("href", row.link);
		}
		rows.prepend(tr);
	};

	// apply applies the changes in an event.
	const apply = (patch) => {
		for (const [id, text] of Object.entries(patch.text || {})) {
			const element = byID(id);
			element ? setText(element, text) : reload();
		}
		for (const [id, attributes] of Object.entries(patch.set || {})) {
			const element = byID(id);
			if (!element) {
				reload();
				continue;
			}
			for (const [name, value] of Object.entries(attributes)) {
				if (settable.has(name)) {
					element.setAttribute(name, value);
				}
			}
			if (attributes.datetime) {
				element.removeAttribute("title");
				show(element);
			}
		}
		const rows = byID("rows"), template = byID("row");
		if (patch.rows && rows && template) {
			patch.rows.toReversed().forEach((row) => addRow(rows, template, row));
			while (rows.childElementCount > maxRows) {
				rows.lastElementChild.remove();
			}
			const none = byID("none");
			if (none) {
				none.hidden = true;
			}
		}
		if (patch.reload) {
			reload();
		}
	};

	// follow opens the stream if the page is visible and not paused, and else closes it. After a gap,
	// also one before the first stream, the page may have other elements, so it is reloaded.
	const follow = () => {
		const wanted = !paused && document.visibilityState === "visible";
		if (!wanted) {
			stale = true;
			if (stream) {
				stream.close();
				stream = null;
			}
			if (paused) {
				say("Paused", "");
			}
			return;
		}
		if (stream) {
			return;
		}
		stream = new EventSource(main.dataset.live);
		stream.onopen = () => {
			say("Live", "ok");
			if (stale) {
				reload();
			}
			stale = true;
		};
		stream.onmessage = (event) => apply(JSON.parse(event.data));
		stream.onerror = () => {
			say("Disconnected", "bad");
			if (stream && stream.readyState === EventSource.CLOSED) { // the browser does not reconnect
				stream = null;
				setTimeout(follow, reloadEvery);
			}
		};
	};

	// copy copies the text of an element.
	const copy = async (button) => {
		const from = byID(button.dataset.copy);
		let said = "Copied";
		try {
			await navigator.clipboard.writeText(from.value || from.textContent);
		} catch {
			getSelection().selectAllChildren(from); // so that the user can copy it with the keyboard
			said = "Selected: copy it with the keyboard";
		}
		button.dataset.label ||= button.textContent;
		byID("said").textContent = button.textContent = said;
		setTimeout(() => {
			byID("said").textContent = "";
			button.textContent = button.dataset.label;
		}, 2000);
	};

	document.addEventListener("click", (event) => {
		const button = event.target.closest("[data-copy]");
		if (button) {
			copy(button);
		}
	});
	document.addEventListener("input", (event) => {
		touched ||= event.target.form != null;
	});
	document.querySelectorAll("button[data-copy]").forEach((button) => { button.hidden = false; });
	showTimes();
	setInterval(showTimes, 10000);

	if (main.dataset.live) {
		const pause = byID("pause");
		pause.hidden = false;
		pause.addEventListener("click", () => {
			paused = !paused;
			pause.textContent = paused ? "Resume" : "Pause";
			follow();
		});
		document.addEventListener("visibilitychange", follow);
		addEventListener("beforeunload", () => { leaving = true; });
		addEventListener("pageshow", () => { // also when the page is restored from the browser's cache
			leaving = false;
			follow();
		});
		addEventListener("pagehide", () => { stream?.close(); stream = null; });
	}
})();
