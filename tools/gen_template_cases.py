#!/usr/bin/env python3
"""Writes tests/data/templates/*.jsonl: templates of our own with what jinja2 makes of them.

usage: gen_template_cases.py OUT_DIR      (needs jinja2 3.1.6)

The environment is the one Hugging Face chat templates run in. One case a line: template, vars,
expected text or the kind of error. Cases stand in the tables below; ASTRAL etc. are for text beyond
ASCII."""

import copy
import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2026, 11, 30, 12, 34, 56)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_run")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()

VARS = {
    "t": True, "f": False, "n": None, "i": 7, "neg": -3, "zero": 0, "x": 2.5, "big": 1e20,
    "s": "Hello, World", "empty": "", "ws": "  a b\t c \n", "uni": "Grüße, ΣΊΣΥΦΟΣ ﬁx ß 日本 😀",
    "li": [3, 1, 2], "ls": ["b", "A", "c", "a"], "mixed": [1, "a", None, True, 2.5, [1], {"k": 1}],
    "d": {"b": 1, "a": [1, 2], "items": "shadow", "c": {"x": "y"}}, "ed": {}, "el": [],
    "users": [{"name": "bob", "age": 30, "tags": ["x", "y"]}, {"name": "Al", "age": 25, "tags": []},
              {"name": "cy", "age": 30, "ok": True}],
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "Hi <|x|> \"q\" 'p'"},
                 {"role": "assistant", "content": " yes ", "tool_calls": [
                     {"function": {"name": "get", "arguments": {"city": "Zürich", "n": 1.0}}}]}],
    "html": "<a href='x'>&\"</a>", "lines": "one\ntwo\n\n  three\r\nfour", "q": "it's", "qq": "\"",
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3
7.5 // 2, -7.5 // 2, 7.5 % 2, -7.5 % 2, 7.5 % -2
2 ** 3 ** 2, -2 ** 2, 2 ** -1, 2.0 ** 0.5, 0 ** 0
1 / 3, 2 / 1, 10 / 4
1e3, 1.5e-7, 1e16, 1e15, 123456789012345678.0, 0.1 + 0.2, 1e22, 1e-5, 0.0001, 1_000, 0x1f, 0o17, 0b101
1.0, -0.0, 100.0, 1e100, 5e-324, 1.7976931348623157e308, 3.14159
x, big, -x, +x, big * 10
t + 1, t + t, f * 5, -t, t == 1, f == 0, t is integer
1 == 1.0, '1' == 1, none == false, [1] == [1.0], (1,) == [1], {'a': 1} == {'a': 1.0}
1 < 2 < 3, 1 < 3 < 2, 3 > 2 >= 2, 1 == 1 != 2
'a' < 'b', 'a' < 'B', 'é' > 'z', [1, 2] < [1, 3], [1] < [1, 2], (1, 'a') < (1, 'b')
'a' in 'abc', 'd' not in 'abc', 1 in [1, 2], 'k' in {'k': 1}, '' in 'x', 3 in range(5), true in [1]
not t, not n, not not 1, not 1 == 2
t and 'yes' or 'no', n or 'dflt', '' and 1, 0 or [] or {}, 1 and 2
'a' ~ 1 ~ none ~ 1.5 ~ true ~ [1, 'b'] ~ undefinedname
'a' 'b' "c"
'a' + 'b' ~ 'c' + 'd'
'ab' * 3, 3 * 'ab', 'ab' * 0, 'ab' * -1, [1, 2] * 2, 2 * (1,)
[1] + [2], (1,) + (2, 3)
s[0], s[-1], s[100], s[1:4], s[:-3], s[::-1], s[::2], s[-3:], s[5:2], s[10:0:-3]
uni[0], uni[2:4], uni[-1], uni[::-1], uni|length
li[0], li[-1], li[5], li[1:], li[::-1], li[-2:], li[:100], li['x']
(1, 2, 3)[1:], (1, 2)[::-1]
range(5)[2], range(5)[-1], range(10)[2:5]|list, range(10)[::-3]|list
range(0, 10, 3)|list, range(5, 0, -2)|list, range(0)|list, range(3), range(1, 7, 2)
d.a, d['a'], d.items, d['items'], d.c.x, d.nope, d['nope'], d.a.0, d.a[1], d.a.nope
d.keys(), d.values(), d.items(), d.keys()|list, d.items()|list
d.get('a'), d.get('zz'), d.get('zz', 5), d.get('zz', default) is none
{'a': 1}.items() | list, {1: 'x', 1.0: 'y', true: 'z'}, {'a': 1, 'a': 2}
{'x': (1,), 'y': [none, true, 1.5, 'q']}
[1, [2, ['x', "it's", "q\"", "both'\""]]], ('a',), (), [], {}
['\n\t\\ \x01 é \u200b 😀'], '\x41\u00e9\U0001F600\101\0' | tojson
'a\
b', 'tab\there', 'q\'q', "d\"d", 'bad\q'
undefinedname, undefinedname is defined, undefinedname is undefined, undefinedname|default('x')
undefinedname|length, undefinedname|list, undefinedname == other, undefinedname|string, not undefinedname
undefinedname|join, undefinedname|items|list, undefinedname|map('upper')|list, undefinedname is sequence
n|default('x'), n|default('x', true), ''|default('x'), ''|default('x', boolean=true), f|d(1), s|d('no')
'yes' if t else 'no', 'yes' if f, ('yes' if f) is undefined, 'a' if f else 'b' if f else 'c'
s|upper, s|lower, 'hello wORLD foo-bar (baz) [x'|title, 'hELLO wORLD'|capitalize, uni|upper, uni|lower, uni|title
uni.upper(), uni.lower(), uni.title(), uni.capitalize(), uni.swapcase(), uni.casefold(), 'ΟΔΥΣΣΕΥΣ'.lower(), 'ǆ'.title(), 'they\'re bill\'s'.title()
ws|trim, '|' ~ ws|trim ~ '|', 'xxhixx'|trim('x'), ws.strip(), ws.lstrip()|length, ws.rstrip()|length, 'xyhiyx'.strip('xy')
'a,b,,c'.split(','), ws.split(), 'a b c'.split(' ', 1), 'a b c'.rsplit(' ', 1), ' a  b  '.split(none, 1), ' a  b  '.rsplit(none, 1), ''.split(), ''.split(',')
'a--b--c'.split('--'), 'a--b--c'.split('--', maxsplit=1), 'abc'.split(sep='b')
'a-b-c'.partition('-'), 'a-b-c'.rpartition('-'), 'abc'.partition('-'), 'abc'.rpartition('-')
lines.splitlines(), lines.splitlines(true), ''.splitlines(), 'a\n'.splitlines()
s.startswith('Hell'), s.startswith(('x', 'H')), s.endswith('ld'), s.endswith(('a', 'd')), s.startswith('W', 7), s.startswith('', 100)
s.find('o'), s.find('o', 5), s.rfind('o'), s.find('zz'), s.index('W'), s.count('l'), s.count(''), uni.find('ß'), s.find('l', -3), s.count('l', 0, 5)
s.replace('l', 'L'), s.replace('l', 'L', 1), s.replace('', '-'), s.replace('zz', 'y'), s.replace('o', ''), 'aaa'.replace('aa', 'b')
s|replace('l', 'L'), s|replace('l', 'L', 1), 5|replace(5, 6), uni|replace('ü', 'ue')
s.center(20)|length, 'a'.center(4, '*'), 'ab'.center(5, '*'), 'a'.ljust(3, '.') , 'a'.rjust(3, '.'), '-5'.zfill(5), '5'.zfill(3), 'x'|center(7)
'abc'.isalpha(), '12'.isdigit(), 'a1'.isalnum(), ' '.isspace(), ''.isspace(), 'AB'.isupper(), 'ab'.islower(), 'Ab Cd'.istitle(), 'aé'.isascii(), 'a_1'.isidentifier()
'prefix_x'.removeprefix('prefix_'), 'x.txt'.removesuffix('.txt'), 'x'.removeprefix('y'), 'a\tb'.expandtabs(4)
','.join(['a', 'b']), ''.join('abc'), ', '.join(d.c), '-'.join(('x',))
li|join(','), ls|join(', '), [1, none, true]|join('-'), users|join(',', attribute='name'), []|join, uni|join('|')
li|sort, li|sort(reverse=true), ls|sort, ls|sort(case_sensitive=true), users|sort(attribute='age')|map(attribute='name')|list, users|sort(attribute='age,name')|map(attribute='name')|list, users|sort(attribute='age', reverse=true)|map(attribute='name')|list
li|min, li|max, ls|min, ls|max(case_sensitive=true), users|max(attribute='age'), []|min
li|sum, users|sum(attribute='age'), li|sum(start=10), []|sum, [0.1, 0.2]|sum
li|first, li|last, []|first, 'abc'|first, 'abc'|last, d|first, li|reverse|list, 'abc'|reverse, li|reverse|first
li|length, s|length, d|length, uni|count, range(7)|length
'abc'|list, d|list, (1, 2)|list, li|list
ls|unique|list, ls|unique(case_sensitive=true)|list, [1, 1, 2, 1.0]|unique|list, users|unique(attribute='age')|map(attribute='name')|list
ls|map('upper')|list, ls|map('upper')|join(','), users|map(attribute='name')|list, users|map(attribute='ok', default='?')|list, users|map(attribute='tags.0')|list, ['a ', ' b']|map('trim')|list, [1, 2]|map('string')|list, ls|map('replace', 'a', 'z')|list
li|select('odd')|list, li|reject('odd')|list, li|select('gt', 1)|list, [0, 1, '']|select|list, [0, 1, '']|reject|list, li|select('divisibleby', 3)|list, li|select('in', [1, 2])|list
users|selectattr('ok')|map(attribute='name')|list, users|selectattr('age', 'equalto', 30)|map(attribute='name')|list, users|rejectattr('age', '==', 30)|list|length, users|selectattr('ok', 'defined')|list|length, users|rejectattr('ok', 'defined')|map(attribute='name')|join(',')
users|groupby('age')|list, users|groupby('age')|map('first')|list, users|groupby('name')|map(attribute='grouper')|list, users|groupby('ok', default=false)|length
li|batch(2)|list, li|batch(2, 'x')|list, range(7)|batch(3)|list, li|slice(2)|list, range(7)|slice(3, 0)|list, []|batch(2)|list
d|dictsort, {'B': 2, 'a': 1}|dictsort, {'B': 2, 'a': 1}|dictsort(true), {'B': 2, 'a': 3}|dictsort(false, 'value'), {'B': 2, 'a': 1}|dictsort(reverse=true)
d|items|list, {'a': 1}|items|list
'42'|int, '42.9'|int, 'x'|int, 'x'|int(5), '0x1f'|int(base=16), '-12'|int, 3.9|int, -3.9|int, none|int, ' 7 '|int, true|int, '1e3'|int, '101'|int(0, 2), []|int
'1.5'|float, 'x'|float, 'x'|float(2.5), 3|float, '1e3'|float, none|float, ' 2 '|float, 'inf'|float, 'nan'|float
-3|abs, -2.5|abs, 2.5|round, 3.5|round, 2.675|round(2), 42|round, 42.55|round(1, 'floor'), 42.51|round(1, 'ceil'), -1.5|round, 1234.5|round(-2), 7|round(0, 'ceil'), 1e25|round
'foo bar baz qux'|truncate(9), 'foo bar baz qux'|truncate(9, true), 'foo bar baz qux'|truncate(11), 'foo bar baz qux'|truncate(11, false, '…', 0), uni|truncate(8, true, '', 0)
'abcdefghij'|truncate(3, leeway=0), ('abcdefghij'|truncate(3, leeway=0)) ~ 'x'
'a b  c_d é'|wordcount, lines|indent, lines|indent(2, true), lines|indent(2, blank=true), lines|indent('> ', first=true), 'x'|indent
'The quick brown fox jumps over the lazy dog'|wordwrap(12), 'averyveryverylongword x'|wordwrap(5), 'averylong x'|wordwrap(5, false), 'a\nb c'|wordwrap(1), 'well-known fact-based'|wordwrap(8)
html|e, html|escape, html|forceescape, html|safe, html|e|e, html|striptags, (html|safe) ~ '<', (html|safe) + '<', '<' + ('&'|safe), html|e|upper, (html|safe)|replace('<', '['), (html|safe).replace('x', '<')
'a b/c?é&=~-'|urlencode, {'a b': 'c&d', 'x': 1}|urlencode, [('k', '1 2')]|urlencode
{'class': 'a"b', 'id': none, 'n': 1}|xmlattr, {'a': 1}|xmlattr(false), {}|xmlattr
d|tojson, d|tojson(indent=2), d|tojson(2), d|tojson(sort_keys=true), d|tojson(separators=(',', ':')), uni|tojson, uni|tojson(ensure_ascii=true), mixed|tojson, 1.0|tojson, big|tojson, none|tojson, []|tojson(indent=4), {}|tojson(indent=4), [[], {}]|tojson(indent=1), {1: 2, none: 3, true: 4, 1.5: 5}|tojson, (1, 2)|tojson, 'a\x01\x7f\u2028"\\/'|tojson, 'a\x7f'|tojson(ensure_ascii=true), [1, 2]|tojson(indent='--')
mixed, mixed|string, mixed|pprint, {'b': 1, 'a': 2}|pprint, s|pprint
'%s is %d' % ('x', 5), '%5.2f|%-5s|%05d|%+d|%x|%X|%o|%e|%g|%%' % (3.14159, 'ab', 42, 5, 255, 255, 8, 12345.678, 0.0001), '%(a)s-%(b)05.1f' % {'a': 1, 'b': 2}, '%r' % 'x', '%s' % none, '%c%c' % ('a', 66), '%s' % [1], '%.2s' % 'abc', '%*d' % (5, 3), '%#x' % 255, '%i' % 3.9, '% d' % 4, '%.3d' % 5, '%s' % undefinedname
'%s-%s'|format('a', 1), '%(x)s'|format(x=5)
'{} {}'.format(1, 'a'), '{1} {0}'.format(1, 2), '{a}{b!r}'.format(a=1, b='x'), '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{:x}|{:+d}|{:e}|{:%}'.format('a', 'b', 'c', 42, 3.14159, 1234567, 255, 5, 1234.5, 0.25), '{0[a]} {0[b][1]}'.format({'a': 1, 'b': [2, 3]}), '{{}}'.format(), '{:{w}}'.format('x', w=4), '{:*^9}'.format('mid'), '{:g}'.format(0.1), '{:.3}'.format('abcdef'), '{:b}'.format(5), '{!s:>4}'.format(none), '{:_}'.format(1234567), '{:#x}'.format(255), '{:c}'.format(65), '{:10.3f}|'.format(2.5), '{:.0f}'.format(2.5), '{0.real}'.format(5)
1 is odd, 2 is even, 6 is divisibleby 3, 6 is divisibleby(4), s is string, li is iterable, li is sequence, d is mapping, d is sequence, 5 is number, true is number, true is boolean, 1 is boolean, 1.0 is float, 1 is float, true is integer, n is none, n is not none, s is callable, range is callable
'a' is lower, 'A' is upper, 'aB' is lower, 1 is lower, 'x' is in 'xyz', 1 is in([1]), 1 is eq 1, 1 is ne 2, 2 is gt 1, 2 is ge 2, 1 is lt 2, 1 is le 1, 1 is sameas 1, true is sameas true, n is sameas none, 'upper' is filter, 'nope' is filter, 'odd' is test, html|safe is escaped, s is escaped, true is true, 1 is true, false is false, 5 is greaterthan 4, 'a' is equalto 'a', 5 is lessthan 6
s is not string, not s is string, s is defined and s is string, li is not mapping or f
li|attr('x') is defined, d|attr('a') is defined, 'x'|attr('upper') is defined, 5|attr('real')
cycler('a', 'b').next(), joiner('|')(), dict(a=1, b='x'), dict([('a', 1)]), dict({'a': 1}, b=2), namespace(a=1).a
s.__class__, d.__len__, [].append, {}.update, s._x, ''.__class__ is defined
li.count(1), li.index(2), (1, 2, 1).count(1), d.copy() == d, li.copy()
(5).real, 5.0.imag
strftime_now('%Y-%m-%d %H:%M:%S %a %A %b %B %d %j %y %I %p %U %W %w %u %V %G %e %F %T %D %R %% %-d %-m %C'), strftime_now('%x %X %c'), strftime_now('é %d')
999|filesizeformat, 1|filesizeformat, 1500|filesizeformat, 1048576|filesizeformat(true), '5000000'|filesizeformat, 1e15|filesizeformat
[x, s][0], (t), (t,), [i, neg, zero][-1], {'k': v}['k'] is undefined
li|map('float')|sum, li|select('odd')|map('string')|join('+'), ls|map('lower')|unique|sort|join
[1, 2, 3] is iterable and 'x' not in ls, 5 in li or 1 in li
messages[-1]['content']|trim, messages[0].role, messages[1:]|length, messages|map(attribute='role')|join(' '), messages[2].tool_calls[0].function|tojson, messages[-1:][0].content
"a" if "<|x|>" in messages[1].content else "b", messages|selectattr('role', 'equalto', 'user')|first
q, qq, [q], [qq], [q ~ qq]
"{{ not a tag }} {% nor this %}", '}}', '%}'
loop is defined, caller is defined, self is defined
"%s"|format(li), li|string + '!', ('a', 'b')|string
lines|wordcount, lines|length, 'x' * 3 ~ 'y'
[].copy() == [], {}.get('a') is none, ''.join([]) == ''
1 if 1 is odd and 2 is even else 0
""" + "\n".join([
    "['a', 'b'][1:] + ['c'], ['x'] * 2", "1.__class__ is defined",
])

TEMPLATES = [
    # whitespace
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}  \nb\n  {% endif %}\nc", "a\n\n",
    "a {%- if t -%} b {%- endif -%} c", "a\n  {%+ if t %}b{% endif +%}\nc", "{{ s }}\n{{ s }}\n",
    "  {{- s -}}  x", "x {#- c -#} y", "x\n  {# c #}\ny", "x\n  {#+ c +#}\ny", "{# {{ }} {% #}z",
    "{% raw %}{{ x }}{% endraw %}y", "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "  {% raw %}\n  q {% endraw %}\nz", "a\r\nb\rc{% if t %}\r\nd{% endif %}\r\n",
    "{% if t %}{% endif %}\n\n\nx", "\n\n{% if t %}\nx{% endif %}", "x{{ '\n' }}\n", "\t{% set a = 1 %}\t|",
    "a  {% set z = 1 %}\n  {{ z }}", "{%if t%}x{%endif%}", "{%- for i in li %}\n  {{ i }}\n{%- endfor %}",
    "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ '}}' }}{{ \"%}\" }}", "{ { % } #", "{{1}}{{-1}}{{ 1 -}} {{+1}}",
    "\u00a0{%- if t -%}\u2003x{% endif %}", "x   {%- if t %}\n  y{% endif %}",
    # if
    "{% if f %}a{% elif n %}b{% elif t %}c{% else %}d{% endif %}", "{% if not el and not ed %}x{% endif %}",
    "{% if x is defined and y is not defined %}ok{% endif %}", "{% if 1, 2 %}t{% endif %}",
    # for
    "{% for i in li %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for i in el %}x{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for c in uni %}[{{ c }}]{% endfor %}", "{% for i in undefinedname %}x{% else %}e{% endfor %}",
    "{% for i in li %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}"
    "{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}|{% endfor %}",
    "{% for i in li %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}",
    "{% for i in li %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{% endfor %}",
    "{% for i in range(6) if i is odd %}{{ i }}/{{ loop.index }}/{{ loop.length }} {% else %}e{% endfor %}",
    "{% for i in li|select('odd') %}{{ i }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in ['xy', 'zw'] %}{{ a }}-{{ b }} {% endfor %}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1] %}{% break %}{% else %}E{% endfor %}", "{% for i in [1] %}{% continue %}{% else %}E{% endfor %}",
    "{% for i in li %}{% for j in li %}{{ loop.index }}{% endfor %}{{ loop.index }}|{% endfor %}",
    "{% for i in li %}{% set outer = loop %}{% for j in 'ab' %}{{ outer.index }}{{ j }}{% endfor %}{% endfor %}",
    "{% for i in [1, [2, [3]]] recursive %}{{ i if i is number else '<' ~ loop(i) ~ '>' }}{{ loop.depth }}{% endfor %}",
    "{% for u in users recursive %}{{ u.name }}{% if u.tags %}({{ loop([{'name': 'k'}]) }}){% endif %};{% endfor %}",
    "{% for i in li %}{{ i }}{% set i = 9 %}{{ i }}{% endfor %}{{ i }}",
    "{% set y = 1 %}{% for i in li %}{{ y }}{% set y = i %}{{ y }}{% endfor %}{{ y }}",
    "{% for i in li %}{{ zz }}{% set zz = i %}{% endfor %}",
    "{% set ns = namespace(c=0, found=false) %}{% for m in messages if not ns.found %}{% set ns.c = ns.c + 1 %}"
    "{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.c }}{{ ns.found }}",
    "{% for i in li %}{{ loop }}{% endfor %}", "{% for i in 'ab' %}{{ loop.index is defined }}{% endfor %}{{ loop is defined }}",
    "{% for x in li %}{% if loop.first %}F{% elif loop.last %}L{% else %}M{% endif %}{% endfor %}",
    "{% for i in li|reverse %}{{ i }}{{ loop.length }}{% endfor %}", "{% for a in [1, 2] %}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for i in li -%}\n  {{ i }}\n{%- endfor %}", "{% for i in (1, 2), %}{{ i }}{% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}",
    # set
    "{% set a = 1 %}{% set b, c = 2, 3 %}{{ a }}{{ b }}{{ c }}", "{% set a %}x{{ i }}y{% endset %}[{{ a }}]",
    "{% set a | upper | trim %} x{{ s }} {% endset %}[{{ a }}]", "{% if t %}{% set q1 = 5 %}{% endif %}{{ q1 }}",
    "{% set a = 1, 2 %}{{ a }}", "{% set ns = namespace() %}{% set ns.x = 1 %}{{ ns.x }}{{ ns.y }}",
    "{% set ns = namespace(d) %}{{ ns.a }}", "{% set s = 'new' %}{{ s }}", "{% set a %}{% set inner = 1 %}{% endset %}{{ inner }}",
    "{% set ns = namespace(a=1) %}{{ ns }}", "{% set ns = namespace(l=[]) %}{% for i in li %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }}",
    "{% set a = b = 1 %}", "{% set li2 = li %}{{ li2 is sameas li }}", "{% set i = i + 1 %}{{ i }}",
    # macros
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=5) }}{{ m(b=7, a=8) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{{ i }}{% endcall %}",
    "{% macro m() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m() %}{% if caller %}c{% else %}n{% endif %}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ i }}{% endmacro %}{% set i = 5 %}{{ m() }}", "{% macro m(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ m(1) }}{{ x }}",
    "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{% macro m(a, b) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}",
    "{% macro m() -%}\n  x\n{%- endmacro %}{{ m() }}", "{{ m is defined }}{% macro m() %}{% endmacro %}{{ m is defined }}{{ m is callable }}",
    "{% macro m(a='x') %}{{ a }}{% endmacro %}{{ m() ~ m('y') }}{{ m('q')|upper }}",
    "{% for i in li %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ loop }}{% endmacro %}{% for i in li %}{{ m() }}{% endfor %}",
    "{% macro m(*args) %}{% endmacro %}", "{% macro m() %}a{% endmacro %}{{ m }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(5, *[6]) }}",
    # with, filter, block, generation
    "{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}",
    "{% with a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{% endwith %}",
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}banana{% endfilter %}",
    "{% block a %}x{{ i }}{% endblock %}{{ self.a() }}", "{% block a %}{% endblock a %}", "{{ self.nope }}",
    "{% generation %}x{{ i }}{% endgeneration %}y", "{% for m in messages %}{% generation %}{{ m.role }}{% set z = 1 %}{% endgeneration %}{{ z }}{% endfor %}",
    "{% print 1, 'a' %}", "{% if t %}{% generation %}\nx\n{% endgeneration %}\n{% endif %}",
    "{{ f(x) if false }}", "{% if false %}{{ x|nofilter }}{% endif %}k", "{{ 1|nofilter if false else 2 }}",
    # cycler, joiner
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner() %}{% for i in li %}{{ j() }}{{ i }}{% endfor %}",
    # chat-like
    "{{ bos }}{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] | trim }}<|end|>\n{% endfor %}",
    "{%- for m in messages -%}\n    {%- if m.tool_calls -%}\n        {{- '<tool>' + (m.tool_calls[0].function | tojson) + '</tool>' -}}\n    {%- else -%}\n        {{- m.content }}\n    {%- endif -%}\n{%- endfor -%}",
    "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ sys }}{{ rest|length }}",
    "{% for m in messages %}{{ loop.index0 % 2 == 0 }}{{ (m['role'] == 'user') != (loop.index0 % 2 == 0) }}{% endfor %}",
]

ERRORS = r"""
{{ undefinedname.x }}
{{ undefinedname() }}
{{ undefinedname + 1 }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 'a' + n }}
{{ s + li }}
{{ li + s }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1 // 0 }}
{{ 1.0 / 0 }}
{{ 0 ** -1 }}
{{ 'a' < 1 }}
{{ n < 1 }}
{{ d < d }}
{{ 1 in 'a' }}
{{ 1 in 5 }}
{{ 'a' in n }}
{{ undefinedname in 'a' }}
{{ -s }}
{{ s() }}
{{ n.x.y }}
{{ n['x'].y }}
{{ d.nope.x }}
{{ li[5].x }}
{{ s.nope() }}
{{ s[1:2:0] }}
{{ d[1:2] }}
{{ n[1:] }}
{{ s['a':] }}
{{ [].append(1) }}
{{ d.update({}) }}
{{ d.pop('a') }}
{{ li.sort() }}
{{ s.__class__.__mro__ }}
{{ s|nofilter }}
{{ s is notest }}
{{ 5|length }}
{{ n|length }}
{{ 5|list }}
{{ n|join }}
{{ 5|join }}
{{ 5|first }}
{{ (x for x in y) }}
{{ li|map('nofilter')|list }}
{{ li|select('notest')|list }}
{{ li|map }}{{ li|map|list }}
{{ users|selectattr()|list }}
{{ mixed|sort }}
{{ ['a', 1]|max }}
{{ [[]]|unique|list }}
{{ {[]: 1} }}
{{ undefinedname|tojson }}
{{ range|tojson }}
{{ li|map('string')|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ {1: 1, 'a': 2}|tojson(sort_keys=true) }}
{{ range(100001) }}
{{ range() }}
{{ range('a') }}
{{ range(1, 2, 0) }}
{{ raise_exception('boom') }}
{{ raise_exception() }}
{{ strftime_now() }}
{{ strftime_now(1) }}
{{ '%d' % 'a' }}
{{ '%s %s' % 'a' }}
{{ '%s' % (1, 2) }}
{{ 'x' % 1 }}
{{ '%(a)s' % 1 }}
{{ '%(a)s' % {} }}
{{ '%z' % 1 }}
{{ '%' % 1 }}
{{ '{}'.format() }}
{{ '{a}'.format() }}
{{ '{'.format() }}
{{ '}'.format() }}
{{ '{:d}'.format('a') }}
{{ '{} {0}'.format(1) }}
{{ ','.join([1]) }}
{{ ','.join(5) }}
{{ s.split('') }}
{{ s.split(1) }}
{{ s.startswith(1) }}
{{ s.index('zz') }}
{{ s.replace('a') }}
{{ s.upper(1) }}
{{ s.strip(x=1) }}
{{ li.index(99) }}
{{ d.get() }}
{{ 5|abs(1) }}
{{ 'a'|abs }}
{{ s|replace('a') }}
{{ s|default(1, 2, 3) }}
{{ s|default(x=1) }}
{{ s|truncate(1) }}
{{ 5|items }}{{ 5|items|list }}
{{ li|dictsort }}
{{ 'x'|round }}
{{ 1|round(1, 'x') }}
{{ undefinedname|int }}
{{ undefinedname|abs }}
{{ li|slice(0)|list }}
{{ 5|reverse }}
{{ li|sum(attribute='x') }}
{{ ls|sum }}
{{ 5|xmlattr }}
{{ {'a b': 1}|xmlattr }}
{{ 1 is divisibleby 0 }}
{{ 1 is divisibleby }}
{{ 1 is odd(2) }}
{{ 'a' is odd }}
{{ 1 is gt 'a' }}
{% for i in 5 %}{% endfor %}
{% for i in n %}{% endfor %}
{% for a, b in li %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for a in li %}{{ loop(1) }}{% endfor %}
{% for loop in li %}{% endfor %}
{% set a, b = 1, 2, 3 %}
{% set a, b = 5 %}
{% set d.x = 1 %}
{% set nope.x = 1 %}
{% set 5 = 1 %}
{% set a = %}
{% set true = 1 %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=1) }}
{% macro m(a) %}{% endmacro %}{{ m(1, a=1) }}
{% macro m(a=1, b) %}{% endmacro %}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}
{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}
{% call 5 %}{% endcall %}
{% include 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% extends 'x' %}
{% do x %}
{% break %}
{% for i in li %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{% macro m() %}{% continue %}{% endmacro %}
{% block a %}{% endblock %}{% block a %}{% endblock %}
{% if %}{% endif %}
{% if t %}
{% if t %}{% endfor %}
{% endif %}
{% for i in li %}
{% for i li %}{% endfor %}
{% unknown %}
{% raw %}
{% %}
{{ }}
{{ 1
{{ 1 }
{{ (1 }}
{{ [1) }}
{{ ) }}
{{ 1 2 }}
{{ 'a }}
{{ a b }}
{{ a. }}
{{ a[ }}
{{ a| }}
{{ a is }}
{{ a ! b }}
{{ f(a=1, 2) }}
{{ f(*a, *b) }}
{{ f(a=1, a=2) }}
{{ '\x4' }}
{{ '\u12' }}
{# open
{{ 1 if }}
{{ x is string is string }}
{{ {'a' 1} }}
{{ {1, 2} }}
{% filter nofilter %}{% endfilter %}
{% if f %}{% for i in li %}{{ 1|nofilter }}{% endfor %}{% endif %}
{{ dict(1) }}
{{ dict([1]) }}
{{ namespace(1, 2) }}
{{ cycler() }}
{{ d.a.b.c }}
{{ s.x.y }}
{{ messages[9].role }}
{{ messages[0].nope.x }}
{{ (1).x.y }}
{{ 2 ** 'a' }}
{{ [1] * [2] }}
{{ [1] - [1] }}
{{ 'a' * 1.5 }}
{{ 'a' - 'b' }}
{{ li|join(',', 'x', 'y') }}
{{ 'a'.center('x') }}
{{ 'a'.center(5, 'xx') }}
{{ 'a'|indent(none) }}
{{ 5|indent }}
{{ 5|truncate }}
{{ n|trim(5) }}
{{ li|first.x.y }}
"""


def run(template, variables):
    case = {"template": template, "vars": variables}
    try:
        case["expected"] = ENV.from_string(template).render(**copy.deepcopy(variables))
    except RecursionError:
        case["error"] = "RecursionError"
    except Exception as error:  # every kind is a case
        case["error"] = type(error).__name__
    return case


def needed(template):
    return {k: v for k, v in VARS.items() if k in template}


def expression_cases():
    joined = EXPRESSIONS.replace("\\\n", "\x00")
    for line in joined.strip().split("\n"):
        line = line.replace("\x00", "\\\n")
        tree = jinja2.Environment().parse("{{ " + line + " }}")
        output = tree.body[0].nodes[0]
        yield "{{ " + line + " }}"
        if isinstance(output, jinja2.nodes.Tuple):
            for part in split_top(line):
                yield "{{ " + part + " }}"


def split_top(text):
    depth, quote, part, parts, escape = 0, "", "", [], False
    for c in text:
        if quote:
            if escape:
                escape = False
            elif c == "\\":
                escape = True
            elif c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(part.strip())
            part = ""
            continue
        part += c
    parts.append(part.strip())
    return [p for p in parts if p]


def write(path, templates):
    seen = set()
    with open(path, "w", encoding="utf-8") as file:
        for template in templates:
            if template in seen:
                continue
            seen.add(template)
            case = run(template, needed(template))
            if " at 0x" in case.get("expected", ""):
                continue  # prints an address
            file.write(json.dumps(case, ensure_ascii=False) + "\n")


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    write(os.path.join(out, "expressions.jsonl"), expression_cases())
    write(os.path.join(out, "statements.jsonl"), TEMPLATES)
    write(os.path.join(out, "errors.jsonl"), ERRORS.strip().split("\n"))


if __name__ == "__main__":
    main()
