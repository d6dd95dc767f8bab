"""Scripts that look at the whole page: names of controls, contrast, width, what hostile text made."""

# Text whose contrast with what is behind it is under 4.5 (3 for large text), computed as WCAG 2 says.
CONTRAST = """(() => {
  const channel = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const luminance = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const parse = (text) => {
    const m = text.match(/[\\d.]+/g).map(Number);
    return [m[0], m[1], m[2], m.length > 3 ? m[3] : 1];
  };
  const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3]));
  const behind = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0) layers.push(c);
      if (c[3] === 1) break;
    }
    let colour = [255, 255, 255];
    for (const c of layers.reverse()) colour = over(c, colour);
    return colour;
  };
  const bad = [], seen = new Set();
  let n = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const judge = (e, colour, what) => {
    const style = getComputedStyle(e), back = behind(e), front = over(parse(colour), back);
    const [a, b] = [luminance(front), luminance(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    n++;
    if (ratio < (isLarge ? 3 : 4.5)) bad.push(`${what} ${ratio.toFixed(2)} ${e.tagName}.${e.className}`);
  };
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(e) || !e.checkVisibility({ visibilityProperty: true }) ||
        e.closest('[aria-disabled="true"],:disabled,.offscreen,script,style,noscript')) continue;
    seen.add(e);
    judge(e, getComputedStyle(e).color, walker.currentNode.data.trim().slice(0, 30));
  }
  for (const e of document.querySelectorAll('input[placeholder],textarea[placeholder]'))
    if (e.checkVisibility()) judge(e, getComputedStyle(e, '::placeholder').color, 'placeholder');
  for (const e of document.querySelectorAll('.icon'))
    if (e.checkVisibility() && !e.closest('[aria-disabled="true"],:disabled')) {
      const style = getComputedStyle(e.parentElement), back = behind(e.parentElement);
      const [a, b] = [luminance(over(parse(style.color), back)), luminance(back)].sort((x, y) => y - x);
      if ((a + 0.05) / (b + 0.05) < 3) bad.push(`icon in ${e.parentElement.ariaLabel}`);
    }
  return { n, bad };
})()"""

# What stands out of the page at the right, when it scrolls sideways.
WIDE = """(() => {
  const width = document.documentElement.clientWidth;
  const isCut = (e) => { for (let p = e.parentElement; p; p = p.parentElement)
    if (getComputedStyle(p).overflowX !== 'visible' && p.id !== 'scroll' && p !== document.body) return true;
    return false; };
  const out = [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility({ visibilityProperty: true })
    && !e.closest('.offscreen') && e.getBoundingClientRect().right > width + 0.5 && !isCut(e));
  const scroller = document.getElementById('scroll');
  return [...out.slice(0, 5).map((e) => `${e.tagName}#${e.id}.${e.className}`),
    ...(document.documentElement.scrollWidth > width ? ['the page scrolls'] : []),
    ...(scroller.scrollWidth > scroller.clientWidth ? ['the messages scroll'] : [])];
})()"""

# Everything that rendered markdown must not have.
FOREIGN = """(() => {
  const tags = new Set(`a p span h3 h4 h5 h6 ul ol li blockquote hr code pre figure figcaption button svg
    use div table thead tbody tr th td em strong del`.split(/\\s+/));
  const attributes = new Set(`class dir href target rel title start scope role tabindex type
    aria-label aria-live aria-hidden`.split(/\\s+/));
  const bad = [];
  for (const e of document.querySelectorAll('.markdown *')) {
    if (!tags.has(e.localName)) bad.push(`<${e.localName}>`);
    for (const a of e.attributes) if (!attributes.has(a.name)) bad.push(`${e.localName} ${a.name}`);
    if (e.localName === 'a') {
      if (!['http:', 'https:', 'mailto:'].includes(e.protocol)) bad.push(e.href);
      if (!e.rel.split(' ').includes('noopener')) bad.push('no noopener');
    }
  }
  return bad;
})()"""

MUST_HAVE_NAMES = ("button", "link", "textbox", "searchbox", "combobox", "listbox", "checkbox",
                   "dialog", "img", "progressbar", "navigation", "complementary", "article",
                   "group", "spinbutton", "switch", "form")


def nameless(page):
    """Roles of the accessibility tree that have no name."""
    out = []
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value")
        if node.get("ignored") or role not in MUST_HAVE_NAMES:
            continue
        if role == "group" and page.html_of([(role, node["backendDOMNodeId"])])[0][1].startswith("<details"):
            continue  # named by its summary
        if not (node.get("name", {}).get("value") or "").strip():
            out.append((role, node.get("backendDOMNodeId")))
    return out


def roles(page):
    return {n.get("role", {}).get("value") for n in page.call("Accessibility.getFullAXTree")["nodes"]
            if not n.get("ignored")}
