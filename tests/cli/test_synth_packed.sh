#!/bin/sh
# synth in codes of 4 bits: every tensor is that of the Python program which shares no code with it
# (scripts/golden/synth_hashes.py); config.json says what the files hold, and the model runs.
#
# Seen to fail with another exponent of a global scale, and without a quantization_config.
build=${BUILD:-build}
. tests/support/verdict.sh
config=golden/mxfp8/model/config.json
while read -r form hash; do
    "$build/m3ref" synth "$config" "$folder/$form" --dtype "$form" >/dev/null 2>"$folder/findings"
    got=$("$build/m3ref" inspect "$folder/$form" --sha256 | LC_ALL=C sort | sha256sum | cut -d ' ' -f 1)
    [ "$got" = "$hash" ] || echo "got $got, expected $hash" >>"$folder/findings"
    verdict "tensors in $form" "$folder/findings"
    : >"$folder/findings"
    "$build/m3ref" estimate "$folder/$form" --from-tensors --json 2>&1 | tr ',' '\n' >"$folder/figures"
    files=$(sed -n 's/.*"weight_bytes_stored"://p' "$folder/figures")
    config_says=$(sed -n 's/.*"weight_bytes_released"://p' "$folder/figures")
    [ -n "$files" ] && [ "$files" = "$config_says" ] ||
        echo "got $files bytes, $config_says by config.json" >"$folder/findings"
    verdict "estimate of $form" "$folder/findings"
done <tests/cli/synth_packed.sha256

cp golden/tiny/model/config.json "$folder/config.json"
for form in nvfp4 mxfp4 w4a16; do
    : >"$folder/findings"
    "$build/m3ref" synth "$folder/config.json" "$folder/bad" --dtype $form >/dev/null 2>"$folder/errors"
    [ $? -eq 65 ] || echo 'expected status 65' >"$folder/findings"
    grep -q 'columns, expected a multiple of' "$folder/errors" || cat "$folder/errors" >>"$folder/findings"
    [ "$(wc -l <"$folder/errors")" -eq 1 ] && [ ! -e "$folder/bad" ] ||
        echo 'expected one line and no folder' >>"$folder/findings"
    verdict "columns that do not fit $form" "$folder/findings"
done

# refuse FORM SED WORDS: a config of that form, changed so, is refused in one line with these words.
refuse() {
    : >"$folder/findings"
    rm -rf "$folder/changed"
    cp -r "$folder/$1" "$folder/changed"
    sed -i "$2" "$folder/changed/config.json"
    "$build/m3ref" inspect "$folder/changed" >/dev/null 2>"$folder/errors"
    [ $? -eq 65 ] || echo 'expected status 65' >"$folder/findings"
    grep -q "$3" "$folder/errors" || cat "$folder/errors" >>"$folder/findings"
    [ "$(grep -vc 'unknown field' "$folder/errors")" -eq 1 ] || cat "$folder/errors" >>"$folder/findings"
    verdict "refuses: $3" "$folder/findings"
}
refuse nvfp4 's/"compressed-tensors"/"gptq"/' 'quant_method: got "gptq", expected "mxfp8", "fp8", "compressed-tensors"'
refuse nvfp4 's/nvfp4-pack-quantized/marlin-24/' 'quantization_config.format: got "marlin-24", expected "nvfp4-pack'
refuse nvfp4 's/"num_bits": 4/"num_bits": 8/' 'config_groups: .*expected weights of 4 bits'
refuse nvfp4 's/"transform_config": {}/"transform_config": {"a": 1}/' 'transform_config: .*are not supported'
refuse nvfp4 's/"compressed-tensors"/"modelopt"/' 'quant_algo: got nothing, expected "NVFP4"'
end
