#!/bin/sh
# Words in, words out: what README.md prints of --prompt, --chat and m3ref.text is what they print; the program with the
# package passes on its errors and statuses; --prompt of every command gives the ids of m3ref.text.
# Skipped where the library tokenizers is not installed.
#
# Seen to fail with: a word of README changed; every error passed on as 69; the template of a chat left out;
# the file of a chat not named; a chat without tokens as 64; Python left behind by a program that is ended.
build=${BUILD:-build}
environment=${PYTHON_ENVIRONMENT:-build/python}
page=${PAGE:-README.md}
. tests/support/verdict.sh
case $environment in /*) ;; *) environment=$PWD/$environment ;; esac
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=scripts/python PATH="$environment/bin:$PATH"
if ! python3 -c 'import tokenizers, jinja2' 2>"$folder/why"; then
    echo "skipped: words: $(tail -n 1 "$folder/why")"
    : >"$folder/findings"
    verdict 'a machine without the library tokenizers' "$folder/findings"
    end
    exit
fi
model=golden/tiny/model
touch "$folder/findings"

# ---- README: the commands of the section, but not the installation
sed -n '/^## Words in, words out/,/^## Why is this/s/^    //p' "$page" >"$folder/lines"
grep -v '^#\|^pip ' "$folder/lines" | sed "s,PATH=build/python/bin,PATH=$environment/bin,; s,build/m3ref,$build/m3ref,;
    s,build/chat,$folder/chat,g" >"$folder/commands"
sed -n 's/^# //p' "$folder/lines" >"$folder/expected"
[ "$(wc -l <"$folder/expected")" -ge 4 ] || echo 'hardly any output' >"$folder/findings"
verdict 'the section' "$folder/findings"
sh "$folder/commands" 2>&1 | diff "$folder/expected" - >"$folder/findings"
verdict 'its output' "$folder/findings"

# ---- the page of the package
sed -n '/^## Words/,/^## In one/s/^    //p' scripts/python/README.md >"$folder/lines"
sed -n 's/^# //p' "$folder/lines" >"$folder/expected"
echo 'The sea is' >>"$folder/expected"
sed 's/| python /| python3 /' "$folder/lines" | sh 2>&1 | diff "$folder/expected" - >"$folder/findings"
verdict 'the page of the package' "$folder/findings"

# ---- the same line as with the ids
ids=$(printf 'How are you? <image>' | python3 -m m3ref.text encode $model)
echo '[{"role": "user", "content": "Hello"}]' >"$folder/chat.json"
chat=$(python3 -m m3ref.text chat $model <"$folder/chat.json")
for command in run 'generate --max-new 3' 'explain --tap layers.0.out --token 2 --channel 1'; do
    set -- $command
    name=$1
    shift
    "$build/m3ref" "$name" $model --ids "$ids" --image golden/photo.png "$@" | grep -v '^run: ' >"$folder/want"
    "$build/m3ref" "$name" $model --prompt 'How are you? <image>' --image golden/photo.png "$@" 2>&1 |
        grep -v '^run: ' | diff "$folder/want" - >"$folder/findings"
    verdict "$name --prompt" "$folder/findings"
    "$build/m3ref" "$name" $model --ids "$chat" "$@" | grep -v '^run: ' >"$folder/want"
    "$build/m3ref" "$name" $model --chat "$folder/chat.json" "$@" 2>&1 | grep -v '^run: ' |
        diff "$folder/want" - >"$folder/findings"
    verdict "$name --chat" "$folder/findings"
done

# ---- a template that runs for ever ends with the program
cp -r $model "$folder/loop"
echo '{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}' >"$folder/loop/chat_template.jinja"
"$build/m3ref" run "$folder/loop" --chat "$folder/chat.json" >/dev/null 2>&1 &
program=$!
python=
until [ "$python" ] || ! kill -0 $program 2>/dev/null; do python=$(pgrep -P $program python3); done
until [ "$(ps -o cputimes= -p "$python" || echo 1)" -ge 1 ]; do sleep 0.1; done       # it renders
kill -TERM $program
wait $program 2>/dev/null
i=0
while kill -0 "$python" 2>/dev/null && [ $((i += 1)) -lt 100 ]; do sleep 0.1; done
[ $i -lt 100 ] || { echo 'Python runs on' && kill -KILL "$python"; } >"$folder/findings"
verdict 'a program that is ended' "$folder/findings"
: >"$folder/findings"

# ---- errors: refused STATUS WORDS OPTION..
refused() {
    want=$1 words=$2
    shift 2
    "$build/m3ref" run "$@" >"$folder/out" 2>"$folder/err"
    got=$?
    { [ $got -eq "$want" ] && [ "$(wc -l <"$folder/err")" -eq 1 ] && grep -q "^m3ref: .*$words" "$folder/err"; } ||
        { echo "status $got, expected $want, one line with \"$words\""; cat "$folder/err"; } >"$folder/findings"
    verdict "refused: $words" "$folder/findings"
    : >"$folder/findings"
}
mkdir "$folder/model" "$folder/libraries"
cp $model/* "$folder/model"
echo '{{ messages.nothing.more }}' >"$folder/model/chat_template.jinja"
cp -r "$folder/model" "$folder/silent"
: >"$folder/silent/chat_template.jinja"
echo '{"role"' >"$folder/bad.json"
refused 64 'got no tokens' $model --prompt ''
refused 64 'not UTF-8' $model --prompt "$(printf '\377')"
refused 65 'chat_template.jinja: .*the template has an error' "$folder/model" --chat "$folder/chat.json"
refused 65 "$folder/bad.json: is not JSON" $model --chat "$folder/bad.json"
printf '\377' >"$folder/bytes.json"
refused 65 "$folder/bytes.json: got bytes that are not UTF-8" $model --chat "$folder/bytes.json"
refused 65 "$folder/chat.json: got no tokens" "$folder/silent" --chat "$folder/chat.json"
refused 66 'tokenizer.json: got no such file' golden/mtp/model --prompt a
refused 66 'tokenizer.json: got no such file' "$folder/none" --prompt a
refused 66 'cannot open' $model --chat "$folder/none"
echo 'raise ImportError("not here")' >"$folder/libraries/tokenizers.py"
PYTHONPATH=$folder/libraries:$PYTHONPATH
refused 69 'pip install tokenizers==' $model --prompt a
end
