"""Random pages of HTML, as strange as pages are, and what a browser sees of changes to them."""

import json
import random

_PIECES = [
    '<img src="a.webp">',
    "<img src=b.webp>",
    "<IMG SRC='c.webp' />",
    '<img src="a.webp" alt="IMG_1">',
    '<img src="a.webp" alt=IMG_1>',
    "<img alt='image of x' src=b.webp>",
    '<img src="a.webp" alt>',
    '<img src="a.webp" alt="">',
    '<img\nsrc="a.webp"\r\n\talt="photo">',
    '<img/src="b.webp"/alt="pic"/>',
    '<img src="a.webp"alt="pic"title="x>y">',
    '<img title="<img src=b.webp>" src="a.webp">',
    '<img src="a.webp" onclick="if(a>b)alert(\'<img src=c.webp>\')">',
    '<!-- <img src="a.webp"> -->',
    '<!-- a -- b > <img src="a.webp"> -->',
    "<!DOCTYPE html>",
    "<!DOCTYPE x [<!ELEMENT a (b)>]>",
    "<script>var a=\"<img src='a.webp'>\";</script>",
    '<script>if(a<b){x="</scr"+"ipt>"}</script>',
    '<style>a::after{content:"<img src=a.webp>"}</style>',
    '<textarea><img src="a.webp"></textarea>',
    '<title>a <img src="a.webp"> b</title>',
    '<xmp><img src="a.webp"></xmp>',
    '<pre><img src="b.webp"></pre>',
    '<a href="x"><img src="c.webp"></a>',
    "<p>a < b & c > d",
    '&lt;img src="a.webp"&gt;',
    "<br/>",
    "</p>",
    "<div data-x='<img src=\"a.webp\">'>",
    '<table><tr><td><img src="a.webp"></table>',
    '<select><option><img src="a.webp"></select>',
    '<svg><image href="a.webp"/><img src="a.webp"></svg>',
    "<math><mi><img src=b.webp></mi></math>",
    '<noscript><img src="a.webp"></noscript>',
    '<template><img src="b.webp"></template>',
    '<iframe src="x"><img src="a.webp"></iframe>',
    '<?xml version="1.0"?>',
    '<![CDATA[<img src="a.webp">]]>',
    '<![if IE]><img src="b.webp"><![endif]>',
    "\r\n",
    "\n",
    "\r",
    "\x0c",
    "\x0b",
    "\x85",
    "\u2028",
    "\ufeff",
    "<b",
    "<img",
    '<img src="a.webp" alt="a',
    '"',
    ">",
    "'",
    '<img src="a.webp" alt="&quot;IMG&quot;">',
    '<img src="a.we&#98;p">',
    '<img src=" a.webp ">',
    '<img src="./a.webp?x=1#y">',
    '<img src="a.webp" src="b.webp">',
    '<img src="a.webp" alt="pic" alt="photo">',
    '<picture><source srcset="a.webp"><img src="b.webp"></picture>',
    '<p>日本語 <img src="c.webp"> é</p>',
    '<img src="a.webp" ALT = "pic" >',
    '<img src="a.webp" alt= pic>',
    '<img src="a.webp" alt="pic"/ >',
    "<img src=a.webp/>",
    '<img src="a.webp" aria-hidden="true">',
    '<img src="a.webp" role=none>',
    f'<img src="a.webp" {"x" * 5000}="y">',
    '<imgx src="a.webp">',
    '<image src="a.webp">',
    '<x:img src="a.webp"/>',
    "<!>",
    "<!-->",
    "<!--->",
    '<!-- x --!> <img src="c.webp">',
    "<//img>",
    '</img src="a.webp">',
    "<plaintext>",
    "<frameset>",
    '<form><input type=image src="a.webp">',
    '<object data="a.webp"><img src="a.webp"></object>',
    "<script/>",
    "<style/>",
    "<title/>",
    "<script><!--<script>",
    '<img src="a.webp" =alt="x">',
    '<img src="a.webp" a"b=c alt=pic>',
    '<img src="a.webp" a<b alt=pic>',
    '{{ "<img src=a.webp>" }}',
    "{% if x %}",
    "{% endif %}",
    "<img src=a.webp {{ x }}>",
    '<? echo "<img src=a.webp>" ?>',
    '<img src="a.webp" alt="Photo of a b&amp;b">',
    '<img src=a.webp alt="image of &#x41;">',
]
_ENCODINGS = [*["utf-8"] * 6, "latin-1", "cp1252", "utf-8-sig", "shift_jis", "gb18030"]


def page(draw: random.Random) -> bytes:
    text = "".join(draw.choice(_PIECES) for _ in range(draw.randint(2, 14)))
    if draw.random() < 0.3:
        text = text.replace("\n", "\r\n")
    return text.encode(draw.choice(_ENCODINGS), "ignore")


# The whole document without the alt texts of images, as the browser writes it; then those texts, in order.
_COMPARED = """((pairs, mayFill) => {
  const seen = text => {
    const document = new DOMParser().parseFromString(text, "text/html"), alts = [];
    const walk = node => {
      const inside = node.content ? [...node.content.childNodes] : [];
      for (const child of [...node.childNodes, ...inside]) walk(child);
      if (node.localName === "img" && node.namespaceURI.endsWith("xhtml")) {
        alts.push(node.getAttribute("alt"));
        node.removeAttribute("alt");
      }
    };
    walk(document);
    return [document.documentElement.outerHTML, document.childNodes.length, alts];
  };
  return pairs.map(([before, after]) => {
    const [one, two] = [seen(before), seen(after)];
    return one[0] === two[0] && one[1] === two[1] && one[2].length === two[2].length
      && one[2].every((alt, i) => alt === two[2][i] || alt !== "" || mayFill) ? "" : "another document";
  });
})(%s, %s)"""


def differences(tab, pairs: list[tuple[bytes, bytes]], *, may_fill: bool = False) -> list[str]:
    """Of each pair of pages, before and after: what a browser sees that is not an alt text; "" where nothing.

    may_fill  alt texts that were empty (of Markdown) may have become texts
    """
    texts = [[one.decode("latin-1") for one in pair] for pair in pairs]
    return tab.run(_COMPARED % (json.dumps(texts), json.dumps(may_fill)))
