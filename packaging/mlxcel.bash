# bash completion for mlxcel. Commands and options are asked of the program itself, models of its
# store, so that what is offered is what there is.
_mlxcel() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]}
    local command=${COMP_WORDS[1]} words
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
        return
    fi
    case $prev in
    --precision) words="auto exact fast" ;;
    --cpu) words="scalar avx2 avx512 neon i8mm" ;;
    --backend) words="cpu xla" ;;
    --xla-precision) words="auto f32 f16 bf16" ;;
    --xla-vision-backend) words="auto host device" ;;
    --models-dir | --local-dir)
        mapfile -t COMPREPLY < <(compgen -d -- "$cur")
        return
        ;;
    --xla-plugin | --surgery | --image | --messages | --template | --system-file | -f | --file | -o | --output)
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    *)
        if [[ $cur == -* ]]; then
            words=$("$program" "$command" --help 2>/dev/null | sed -n 's/^ *\(-.*\)/\1/p' |
                cut -c1-60 | grep -oE -- '(^|[ ,])--?[a-z][a-z-]*' | tr -d ' ,')
        else
            words=$("$program" list -q 2>/dev/null)
            mapfile -t COMPREPLY < <(
                compgen -W "$words" -- "$cur"
                compgen -d -- "$cur"
                compgen -f -X '!*.gguf' -- "$cur"
            )
            return
        fi
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -o filenames -F _mlxcel mlxcel
