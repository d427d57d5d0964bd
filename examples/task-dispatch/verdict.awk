# verdict.awk: compares the task log with what the workers got and were told. Reads the files that `run` describes, wanted.tsv,
# got.tsv, midway.tsv, sent.tsv, told.tsv and log.tsv, in this order. `killed` is when the server was killed, `heard` how many lines
# of got.tsv are from before. Writes the numbers of tasks that are delivered and of times that were skipped to `counts`.
# Exits with 1, and says what, if something is broken.

function broken(what) {if (bad++ < 20) print "  BROKEN: " what}
# What the workers know.
FILENAME == "wanted.tsv" {to[$1] = $2; times[$1] = $3; again[$1] = $4 == "true"; room[$1] = $5; minutes[$1] = $6; next}
FILENAME == "got.tsv" {
    place[$5] = $1 "|" $3 "|" $4
    if (FNR <= heard) early[place[$5]]
    if ($2 ~ /^rounds:/) {to[$2] = "group:night"; times[$2] = room[$2] = 1; minutes[$2] = 30}
    if (!($2 in to)) broken($1 " got " $2 ", and nobody made it")
    if (to[$2] != "worker:" $1 && index($1, substr(to[$2], 7) "-") != 1)
        broken($1 " got " $2 ", which is for " to[$2])
    if ($7 != room[$2] || $8 != minutes[$2]) broken($2 " came for room " $7 " and " $8 " minutes")
    next
}
FILENAME == "sent.tsv" {sent[place[$2]] = $3; next}
FILENAME == "midway.tsv" {midway[$1 "|" $3 "|" $4]; next}
FILENAME == "told.tsv" {told[place[$2], $3]++; if ($3 == 200) acked[place[$2]]++; next}
# What the log says, in its order.
{key = $5 "|" $3 "|" $4}
$1 == "queue.leased" {
    leased++
    # Given out before the kill, and got after it.
    if ($7 < killed && !(key in early)) regained++
    if ($7 < $8) broken($2 " was given out at " $7 ", before it was due at " $8)
    if ($3 in out) broken($2 " was given to " $5 " while " out[$3] " had it")
    if ($3 in finished) broken($2 " was given out under " $3 ", which was settled")
    if ($4 != ++attempts[$3]) broken($2 " was given out under " $3 " as attempt " $4 ", not " attempts[$3])
    if ($2 ~ /^rounds:/ && $9 != "rounds") broken($2 " does not carry its schedule")
    out[$3] = $5
}
$1 == "queue.settled" {
    settled++
    if (out[$3] != $5) broken($5 " settled " $2 ", which it had not")
    if ($6 != sent[key]) broken("the log says " $6 " of " $2 ", and " $5 " said " sent[key])
    if (!again[$2] && by[$2, $5]++) broken($5 " has settled two places of " $2)
    delete out[$3]
    finished[$3] = key
    inlog[key] = 1
    acks[$2]++
}
$1 == "queue.lease_lost" {
    lost++
    gone[key]
    if (out[$3] != $5) broken($5 " lost " $2 ", which it had not")
    if (key in acked) broken($5 " lost " $2 ", and had been told that it is settled")
    delete out[$3]
}
$1 == "timer.delivered" {
    delivered[$2]++
    if (acks[$2] != times[$2]) broken($2 " is delivered, and " acks[$2] + 0 " of its " times[$2] " places are settled")
}
$1 == "schedule.skipped" {skips++; if ($2 in to) broken($2 " was skipped, and came")}
END {
    for (key in acked) if (acked[key] != 1 || !(key in inlog)) broken("the settlement " key " was told " acked[key] " times, and is not once in the log")
    for (key in inlog) if (!(key in acked)) {
        unheard++
        if (!(key in midway)) broken("the log says that " key " is settled, and nobody was told")
    }
    for (timer in to) if (delivered[timer] != 1) broken(timer " is delivered " delivered[timer] + 0 " times in the log")
    for (timer in delivered) {count++; if (!(timer in to)) broken(timer " is delivered, and nobody got it")}
    for (id in out) broken(out[id] " has not settled " id)
    for (key in told) {
        split(key, part, SUBSEP)
        if (part[2] == 200) continue
        refused++
        if (!(part[1] in gone)) broken("the settlement " part[1] " was refused, and its lease was not lost")
    }
    # That of eve, and no other, unless this machine stood still for a minute.
    if (lost < 1 || refused < 1) broken("the lease of eve is not lost")
    if (bad) exit 1
    print "  log       " leased " given out = " settled " settled + " lost " lost; the workers say the same"
    print "  unheard   " regained + 0 " leases and " unheard + 0 " settlements whose answer was lost in the kill; each counts once"
    print count " " skips >"counts"
}
