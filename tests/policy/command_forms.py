"""What generated commands are made of. ``«w»`` and the like stand for what the generator makes."""

import re

PROGRAMS = ("alpha", "beta", "gamma", "git", "rm", "pytest")
FAILS = "fails"


def _table(text: str) -> tuple[str, ...]:
    """Entries stand three spaces or a line apart; ``⏎`` is the end of a line."""
    return tuple(entry.replace("⏎", "\n") for entry in re.split("   +|\n", text) if entry)


BARE = _table(
    r"""
a   x1   -q   --opt=v   README.md   agent/x   é   日本   a=b   {}   -   --   %s   a,b   @   +   ]   !   a#b
if   done   in   then   }   -v   -p   -exec   -c   eval   time   a:   a%b   ^x   2   1.5   =x   a==   x+=1
[   [[   -n   -e
"""
)
QUOTED = _table(
    r"""
'a b'   'c$d'   '#'   '`x'   ''   '\'   'a⏎b'   '$(alpha no)'   '"'   '*'   "a b"   "a\"b"   "a\\b"
"a\$b"   "'"   ""   "a\⏎b"   "#"   "*"   "~"   "a\b"   "!x"   $'a\nb'   $'\x41'   $'it\'s'   $'a'   $"a b"
$'\''   $'\\'   a\ b   \$x   \;   \#c   a\'b   \\   a\"b   \~   \*   \{a,b}   a\⏎b   \a
"""
)
EXPANDED = _table(
    r"""
{a,b}   {1..3}   a{b,c}d   {a,"b c"}   {a,b}{c,d}   {}{a,b}   {a,{b,c}   {x   a}   {a}   *   ?   [ab]*
x*y   *.py   [!a]   [   a[   ~   ~/x   a=~   a:~   ~+   f?   $v   ${v}   ${#v}   ${v/a/b}   ${v#*x}
${v:1:2}   ${v%%x}   ${v^^}   $1   $#   $?   $$   $@   "$v"   "${v}"   "$@"   "$*"   "${a[@]}"   ${a[@]}
${a[0]}   "${#a[@]}"   $*   ${v,}   ${v@Q}   ${!v}   ${v@P}   ${a[v]}   ${a[$v]}   ${v:v}   ${v:=x}
${v:-d}   "${v:-'x'}"   ${!a[@]}   $((1+2))   $[1+2]   $((v))   $((v+1))   $(( $v ))   "$((1))"
$((a[0]))   $(($#+1))   $((1<<2))   $_   $0   $-   $!   ${v:?}   ${v+x}   $   $%   a$   $v$v
${v//[a-z]/}   ${10}   ${#}   ${?}
"""
)
VALUES = _table(
    r"""
alpha   'a b'   -v   'x[$(alpha hidden)]'   '$(alpha hidden)'   'alpha hidden'   ''   -exec   1
'a[$(alpha hidden)]'   ';'   x   '-v x[$(alpha hidden)]'   git   $(beta 7)   {a,b}   ~
"""
)
NASTY = _table(
    r"""
eval «w»   eval alpha «w»   eval '«simple»'   source f   . f   trap 'alpha trapped' EXIT   alias z='alpha z'
set -- alpha «w»   "$@"   $v «w»   "$v"   shopt -s expand_aliases   z   z «w»   jobs -x alpha «w»
builtin eval alpha «w»   command eval alpha «w»   'eval' alpha x   \eval alpha x   ev\al alpha x
printf -v «w» x   printf -v 'a[$(alpha hidden)]' x   printf «w» «w»   printf "$v" "$v"   printf %s «w»
test -v «w»   [ -v 'a[$(alpha hidden)]' ]   [ -v $v ]   [ «w» = «w» ]   [ "$v" "$v" ]   [ $v = x ]
[ «w» -eq 1 ]   test -n «w»   test «w»   [[ -v a[$v] ]]   [[ $v -eq 1 ]]   [[ v -lt 2 ]]   [[ 1 -eq 1 ]]
let v   let v=1   let 1+1   (( v ))   (( v=1 ))   ((1+2))   (( $v ))   a[v]=1   a[1]=x   a[$v]=x
declare -i n=v   declare «w»   declare -n r=v; echo $r   export v   export «w»   readonly q=«w»   unset v
unset 'a[$(alpha hidden)]'   unset «w»   read v <<< «w»   read 'a[$(alpha hidden)]' <<< x
mapfile -C 'alpha hidden' -c 1 m <<< x   mapfile m <<< x   readarray m <<< «w»   getopts a v -a
hash -p bin/alpha delta   enable -n echo   compgen -C 'alpha hidden'   complete -F f x   wait $v   wait
for v in «w» «w»; do «c»; done   select v in «w»; do «c»; break; done   for ((i=0;i<2;i++)); do «c»; done
for ((;;)); do «c»; break; done   coproc «c»   coproc N { «c»; }   coproc { «c»; }   time -- «c»
time -p «c»   time «c»   ! «c»   ! ! «c»   time ! «c»   ! time «c»   \time «c»   command «c»   time
exec «c»   exec -a x «c»   builtin echo «w»   command -v alpha   command -p alpha   {fd}>f «c»
PATH=bin «c»   PATH=bin; «c»   IFS=x; $v   v=«w»; $v   cd sub; «c» > f   set -e   set -x   set -f
find . -exec alpha «w» \;   find «w»   sh -c 'alpha hidden'   bash -c 'alpha hidden'   bash <<< 'alpha x'
echo 'alpha hidden' | sh   alpha() { beta own «w»; }; alpha   set -k   set -o posix   exec
"""
)
WRAPPED = _table(
    r"""
env «c»   env A=1 «c»   env -i PATH=$PATH «c»   env -u A «c»   env B=«w» «c»   env «w» «c»   env -- «c»
nice «c»   nice -n 5 «c»   nice -n5 «c»   nice -5 «c»   nice «w» «c»   timeout 5 «c»   timeout «w» «c»
timeout -k 1 5 «c»   timeout --signal=KILL 5 «c»   nohup «c»   stdbuf -oL «c»   stdbuf -o L «c»
setsid -w «c»   env nice timeout 5 «c»   env -S 'alpha hidden'   env '-Salpha hidden'   command nice «c»
echo x y | xargs «c»   echo x | xargs -I{} «c» {}   echo x | xargs -n 1 «c»   echo x | xargs -0n1 «c»
echo x | xargs   echo alpha | xargs -I{} {} «w»   echo x | xargs -i «c» {}   echo x | xargs -I % «c» a%
echo x | xargs «w» «c»   exec nice «c»   nohup nice -n 1 env A=b «c»   ./env «c»   command -- «c»
echo -exec | xargs find . -name x   echo -c 'alpha hidden' | xargs sh   builtin command «c»
"""
)
ODD = _table(
    r"""
a=(b   --x='y   z'   "   (   $(   `   {   }   a\   [[   ]]   )   <(   !(a)   @(a|b)   ?(a)
"""
)
SUBSTITUTIONS = _table(
    r"""
$(«in»)   "$(«in»)"   `«in»`   "`«in»`"   <(«in»)   >(«in»)   ${v:-$(«in»)}   "${v:-$(«in»)}"   $( «in» )
$((1+$(«in»)))   ${v/x/$(«in»)}   "${v:-'$(«in»)'}"   ${q:-`«in»`}   $((«in»))   $(«in»⏎)   a$(«in»)b
$(<f)
$(case x in x) «in» ;; esac)   $(case x in (x) «in» ;; esac)   $( («in») )   ${a[$(«in»)]}   $((«in») )
`echo \`«in»\``   "$(echo "$(«in»)")"   $(: # )⏎«in»)   ${v#$(«in»)}   "${v#'$(«in»)'}"   $[$(«in»)]
"""
)
COMPOUND = _table(
    r"""
( «list» )   («list»)   { «body»}   if «body»then «body»fi   while fails || «body»do «body»break; done
if fails; then «body»elif «body»then «body»else «body»fi   until «body»do «body»break; done
for i in «w» «w»; do «body»done   for i⏎do «body»done   for i in a; { «body»}   f() ( «list» ); f
case «w» in a|b) «body»;; *) «body»esac   case x in («w») «body»;& x) «body»;;& y) esac
f() { «body»}; f «w»   function g { «body»}⏎g   f() { «body»} > out; f   { «body»} 2>&1 | «c»
[[ «w» == «w» && -n «w» ]]   [[ a =~ «w» ]] || «c»   ( «list» ) & wait   !(«simple»)
((«list») | «simple»)   export E=«w»; «c»   { «body»} >f   { «body»} <f   { «body»} >f 2>g
"""
)
REDIRECTED = _table(
    r"""
>«file»   >>«file»   <«file»   2>«file»   >|«file»   <>«file»   &>«file»   &>>«file»   >&«file»   2> «file»
> «file»   3<>«file»   {fd}>«file»   2>&1   >&2   1>&2   2>&-   <&-   <&0   3>&1-   <<< x   <<< "$(beta 9)"
>&2-   2>&$v
"""
)
FILES = _table(r"""f   gh   'f g'   $v   "$v"   <(«in»)   f*   {f,g}   a\ b""")
IN_HERE_DOCUMENTS = _table(
    r"""
text   $v   $(alpha in)   `beta in`   \$(alpha no)   '$(git in)'   a \   a\   \\   #   ${v:-$(rm in)}   E
"${v:-'$(rm in)'}"   $((1))   \`alpha no\`   F'   E-1 x
"""
)
COMMENTS = ("# c\n", "# it's \\\n", "#\\\n", "# $(alpha no)\n", "# a \\\\\n", "# `\n", "# \\ \n")
SEPARATORS = (";", "; ", "\n", " ;\n")
JOINTS = (";", "; ", "\n", " && ", " || ", " & ", "&", " &&\n", " || \\\n", "; # c\n")
PIPES = (" | ", "|", " |& ", " |\n", " | \\\n")
NOISE = (
    *_table(
        r"""
\   \⏎   ⏎   '   "   `   $   $(   )   (   {   }   ;   &   |   #   <   >   <<   <<<   >&   &>   !   *   $'
$"   ${
$((   ;;   &&   ||   =   @(   !(   +(   [[   ]]   ((   esac   fi   done   <(   \`   $[   ]   [   ~   %
^   <<-   <<E
⏎E⏎   {a,
"""
    ),
    *(
        " ",
        " # ",
        " #\\\n",
        "case ",
        " in ",
        "if ",
        "then ",
        "do ",
        "time ",
        "coproc ",
        "function ",
        "\\\r\n",
    ),
    *map(chr, (0, 1, 7, 8, 9, 11, 12, 13, 27, 127, 0x85, 0xA0, 0x200B, 0x2028, 0x3000, 0xFEFF)),
)
