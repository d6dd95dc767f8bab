// Colours for code: comments, strings, numbers and the words of common languages. One pass of one
// sticky pattern; what it does not know stays plain. Appends text nodes and spans to the element.

const MAX_LENGTH = 60000;

const WORDS = {
  c: `auto break case char const continue default do double else enum extern float for goto if
    inline int long register return short signed sizeof static struct switch typedef union unsigned
    void volatile while bool true false NULL class namespace template typename public private
    protected virtual override new delete this using try catch throw nullptr constexpr`,
  js: `async await break case catch class const continue default delete do else export extends
    false finally for from function get if import in instanceof let new null of return set static
    super switch this throw true try typeof undefined var void while yield interface type enum
    implements readonly public private string number boolean`,
  py: `and as assert async await break class continue def del elif else except False finally for
    from global if import in is lambda None nonlocal not or pass raise return True try while with
    yield match case self`,
  rust: `as async await break const continue crate dyn else enum extern false fn for if impl in let
    loop match mod move mut pub ref return self Self static struct super trait true type unsafe use
    where while`,
  go: `break case chan const continue default defer else fallthrough for func go goto if import
    interface map package range return select struct switch type var nil true false string int
    error bool byte`,
  java: `abstract boolean break byte case catch char class const continue default do double else
    enum extends final finally float for if implements import instanceof int interface long new
    null package private protected public return short static super switch this throw throws true
    false try void while var val fun when object override`,
  sh: `if then else elif fi for while do done case esac in function return local export set echo
    exit cd read test source`,
  sql: `select from where and or not insert into values update set delete create table drop alter
    join left right inner outer on group by order limit having as distinct null is in like union
    primary key foreign references index view begin commit`,
  json: 'true false null',
};
const NAMES = { 'c++': 'c', cpp: 'c', h: 'c', hpp: 'c', cc: 'c', cuda: 'c', cs: 'java',
  csharp: 'java', javascript: 'js', ts: 'js', typescript: 'js', jsx: 'js', tsx: 'js', mjs: 'js',
  python: 'py', rs: 'rust', golang: 'go', kotlin: 'java', scala: 'java', swift: 'rust',
  bash: 'sh', shell: 'sh', zsh: 'sh', console: 'sh', yaml: 'sh', yml: 'sh', toml: 'sh',
  jsonc: 'json' };
const HASH = new Set(['py', 'sh']);
const words = new Map();

function wordsOf(language) {
  if (!words.has(language)) words.set(language, new Set(WORDS[language].split(/\s+/)));
  return words.get(language);
}

function patternOf(language) {
  const comment = HASH.has(language) ? '#[^\\n]*'
    : language === 'sql' ? '--[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)'
      : '\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)';
  const string = (language === 'py' ? '"""[^]*?(?:"""|$)|' : '')
    + '"(?:\\\\.|[^"\\\\\\n])*"?|\'(?:\\\\.|[^\'\\\\\\n])*\'?'
    + (language === 'js' || language === 'go' ? '|`(?:\\\\[^]|[^`\\\\])*`?' : '');
  return new RegExp(`(${comment})|(${string})|([A-Za-z_$][\\w$]*)|(\\d[\\w.]*)`, 'g');
}

export function highlight(element, code, name) {
  const language = Object.hasOwn(NAMES, name) ? NAMES[name] : name;
  if (code.length > MAX_LENGTH || !Object.hasOwn(WORDS, language)) {
    element.append(code);
    return;
  }
  const known = wordsOf(language), pattern = patternOf(language);
  const isSql = language === 'sql';
  let plain = 0;
  for (let m = pattern.exec(code); m; m = pattern.exec(code)) {
    const word = m[3] && known.has(isSql ? m[3].toLowerCase() : m[3]);
    const kind = m[1] ? 'comment' : m[2] ? 'string' : m[4] ? 'number' : word ? 'word' : '';
    if (!kind) continue;
    if (m.index > plain) element.append(code.slice(plain, m.index));
    const span = document.createElement('span');
    span.className = `code-${kind}`;
    span.textContent = m[0];
    element.append(span);
    plain = pattern.lastIndex;
  }
  element.append(code.slice(plain));
}
