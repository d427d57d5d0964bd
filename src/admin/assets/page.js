// The server builds all HTML and SVG; this sets attributes and text.
"use strict";
(() => {
	const $ = (id) => document.getElementById(id);
	const text = (id, value) => { if ($(id)) $(id).textContent = value; };
	const set = (e, name, value) => { if (e.getAttribute(name) !== value) e.setAttribute(name, value); };
	const number = (n) => String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
	const rate = (r) => (r < 0.05 ? "0" : r < 99.95 ? r.toFixed(1) : number(r));
	const timers = (n) => `${number(n)} timer${n === 1 ? "" : "s"}`;
	const on = (e, name, act) => e.addEventListener(name, act);

	// Parts read themselves again: not while nobody looks, or somebody works in them.
	on(document, "htmx:beforeRequest", (event) => {
		const e = event.target;
		const busy = document.hidden || e.closest("details:not([open])") || e.querySelector("details[open]") || e.contains(document.activeElement);
		if ("poll" in e.dataset && busy) event.preventDefault();
	});
	on(document, "htmx:afterRequest", ({ target, detail }) => {
		if ("poll" in target.dataset && $("gone")) $("gone").hidden = detail.successful;
	});
	on(document, "change", ({ target }) => {
		const marks = [...document.querySelectorAll("[type=checkbox][name=id]")];
		if (target.id === "all") marks.forEach((mark) => { mark.checked = target.checked; });
		text("marked", `${timers(marks.filter((mark) => mark.checked).length)} marked`);
	});
	on(document, "click", ({ target }) => {
		const { copy } = target.dataset;
		if (copy) navigator.clipboard.writeText($(copy).textContent).then(() => { target.textContent = "Copied"; });
	});
	const here = $("zone-here");
	const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
	if (here && zone !== here.dataset.now) {
		[here.value, here.textContent, here.hidden] = [zone, `Show times in ${zone}`, false];
	}

	const picture = $("wheels");
	if (!picture) return;
	const iso = (ms) => new Date(ms).toISOString();
	const clock = (ms) => iso(ms + picture.dataset.offset * 1000).slice(11, 19);

	// A sector of a ring, a fifth narrower than its slot.
	const sector = (i, n, from, to) => {
		const at = (r, part) => {
			const a = ((i + part) / n) * 2 * Math.PI;
			return `${(200 + r * Math.sin(a)).toFixed(1)} ${(200 - r * Math.cos(a)).toFixed(1)}`;
		};
		return `M${at(from, 0.1)}L${at(to, 0.1)}A${to} ${to} 0 0 1 ${at(to, 0.9)}L${at(from, 0.9)}A${from} ${from} 0 0 0 ${at(from, 0.1)}Z`;
	};

	class Ring {
		constructor(group) {
			for (const name in group.dataset) this[name] = +group.dataset[name];
			this.cells = [...group.querySelectorAll("a")];
			this.counts = new Map();
		}

		// Behind the hand is late. A cascaded minute is hollow, as long as what its seconds hold.
		draw(now, taken, seconds = []) {
			const n = this.cells.length;
			const first = Math.floor(now / this.ms / this.per);
			const shown = this.cells.map(() => ({ waiting: 0, late: 0, hollow: 0 }));
			const add = (tick, count, kind) => {
				const slot = Math.floor(tick / this.per);
				if (slot >= first + n || slot <= first - n / 2) return;
				const cell = shown[slot % n];
				cell[kind] += count;
				if (kind === "late" || !cell.slot) cell.slot = slot;
			};
			for (const [tick, count] of this.counts) {
				add(tick, count, tick * this.ms + 1500 <= now ? "late" : tick <= taken ? "hollow" : "waiting");
			}
			for (const [second, count] of seconds) {
				const minute = Math.floor((second * 1000) / this.ms);
				if (minute <= taken && second * 1000 + 1500 > now) add(minute, count, "hollow");
			}
			for (const cell of shown) cell.count = cell.late || cell.waiting || cell.hollow;
			const fullest = Math.cbrt(Math.max(1, ...shown.map((cell) => cell.count)));
			shown.forEach((cell, i) => this.show(this.cells[i], i, cell, fullest));
		}

		show(link, i, { slot, count, late, waiting }, fullest) {
			const kind = late ? "late" : waiting ? "" : "hollow";
			const length = Math.max(1, (Math.cbrt(count) / fullest) * (this.to - this.from));
			set(link.lastElementChild, "d", count ? sector(i, this.cells.length, this.from, this.from + length) : "");
			set(link, "class", kind);
			if (!count) return link.removeAttribute("href");
			const [from, to] = [slot, slot + 1].map((one) => one * this.per * this.ms);
			set(link, "href", `/timers?due_after=${iso(from)}&due_before=${iso(to)}`);
			set(link, "aria-label", `${clock(from)}, ${timers(count)}${late ? ", late" : ""}`);
		}
	}
	const [s, m] = [...picture.querySelectorAll("g")].map((group) => new Ring(group));
	const hands = [...picture.querySelectorAll("[data-turn]")];
	const steps = matchMedia("(prefers-reduced-motion: reduce)");
	const title = document.title;
	let [base, heard, taken, source, half] = [0, 0, {}, null, 0];
	const now = () => base + Math.min(performance.now() - heard, 3000);
	const draw = () => {
		s.draw(now());
		m.draw(now(), taken.m, s.counts);
	};

	const words = (x) => {
		text("sentence", x.sentence);
		set($("sentence"), "href", x.link);
		set($("sentence").parentElement, "data-level", x.level);
		document.title = `${x.sentence} · Mainspring`;
		set($("flow"), "data-redis", x.redis ? "here" : "away");
		document.querySelectorAll("[data-degraded]").forEach((e) => { e.hidden = !x.degraded.includes(e.dataset.degraded); });
		for (const name in x) if (typeof x[name] === "number") text(name, number(x[name]));
		for (const name in x.rates) text(`rate-${name}`, rate(x.rates[name]));
		const most = Math.log1p(Math.max(1, ...x.bins));
		x.bins.forEach((n, i) => {
			text(`bin-${i}`, number(n));
			set($(`bar-${i}`), "width", ((100 * Math.log1p(n)) / most).toFixed(1));
		});
		text("hub-fired", `${rate(x.fired)} fired/s`);
		const ms = x.p99;
		text("hub-p99", `p99 ${ms === null ? "–" : ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(1)} s`}`);
	};

	const hear = ({ type, data }) => {
		const frame = JSON.parse(data);
		[base, heard, taken] = [frame.now, performance.now(), frame.taken];
		for (const [name, { counts }] of [["s", s], ["m", m]]) {
			if (type === "full") counts.clear();
			for (const [tick, n] of frame[name]) if (n) counts.set(tick, n); else counts.delete(tick);
			text(`total-${name}`, number([...counts.values()].reduce((a, b) => a + b, 0)));
		}
		if (frame.x) words(frame.x);
		draw();
	};

	const turn = () => {
		requestAnimationFrame(turn);
		if (!base) return;
		const at = steps.matches ? Math.floor(now() / 1000) * 1000 : now();
		for (const hand of hands) {
			const ms = hand.dataset.turn;
			set(hand, "transform", `rotate(${(((at % ms) / ms) * 360).toFixed(2)} 200 200)`);
		}
		if (half === (half = Math.floor(performance.now() / 500))) return;
		const quiet = Math.floor((performance.now() - heard) / 1000);
		text("clock", clock(now()));
		$("flow").classList.toggle("stale", quiet > 1);
		text("heard", quiet > 1 ? `Nothing heard for ${quiet} s: what is shown is old` : "Live");
		if (quiet < 2) draw();
	};

	// A hidden page asks for no frames.
	const watch = () => {
		if (source) source.close();
		source = null;
		document.title = title;
		if (document.hidden) return;
		source = new EventSource("/wheels/stream");
		on(source, "full", hear);
		on(source, "delta", hear);
		// A browser does not try again after an answer that is no stream.
		source.onerror = ({ target }) => { if (target === source && target.readyState === 2) setTimeout(watch, 2000); };
	};
	on(document, "visibilitychange", watch);
	watch();
	turn();

	// What a slot holds; arrow keys lead from one to the next.
	let shown;
	const tell = ({ target }) => {
		const link = target.closest("a[href]");
		if (!link || link === shown) return;
		shown = link;
		text("slot", link.getAttribute("aria-label"));
		const path = link.getAttribute("href").replace("/timers", "/wheels/slot");
		setTimeout(() => { if (shown === link) htmx.ajax("GET", path, "#slot"); }, 250);
	};
	on(picture, "pointerover", tell);
	on(picture, "focusin", tell);
	on(picture, "keydown", ({ key }) => {
		const links = [...picture.querySelectorAll("a[href]")];
		const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
		if (step && links[0]) links.at((links.indexOf(document.activeElement) + step) % links.length).focus();
	});
})();
