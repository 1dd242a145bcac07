"""What runs cost, and what is recommended."""
from table import Mutant

BUILD = "release"
COST, RECOMMEND, RUN = "src/report/run_cost.cpp", "launch/scaling/recommend.py", "launch/run/main.py"
COSTS, ADVICE = "report.run_cost RunFiles.", "launch.recommend Recommend."
MUTANTS = [
    Mutant("dollars: a node is paid, whatever their number", COST, "config.run.usd_per_node_hour * static_cast<double>(nodes)",
           "config.run.usd_per_node_hour", [COSTS + "NodesArePaidFromTheStartOfTheProgram"]),
    Mutant("dollars: earlier starts were free", COST, "before_ = earlier.back().usd;", "", [COSTS + "EarlierStartsArePaidToo"]),
    Mutant("dollars: what was logged last was free", COST, 'before_ = std::max(before_, number_in(line, "usd", 0));', "static_cast<void>(line);",
           [COSTS + "EarlierStartsArePaidToo"]),
    Mutant("dollars: a report forgets them", "src/report/run_start.cpp", 'start.usd = json.value("usd", 0.0);', "",
           [COSTS + "PricesAreInMetricsReportAndLastLines"]),
    Mutant("dollars: an estimate pays one node", "src/estimate/estimate_table.cpp", "config.train.steps * nodes", "config.train.steps * (nodes > 0)",
           ["program.estimate Estimates.test_dollars"]),
    Mutant("estimate: the largest micro-batch divides nothing", "src/commands/estimate.cpp", "tried.train.micro_batch = usable;",
           "tried.train.micro_batch = 1;", ["program.estimate Estimates.test_the_largest_micro_batch"]),
    Mutant("run.sh: the machine's price and bandwidth overrule the user's", RUN, " if taken[key] != settings[key]}", "}",
           ["launch.checks Choices.test_what_follows_from_the_machine_type"]),
    Mutant("recommend: nodes are free", RECOMMEND, 'row["hours"] * row["nodes"] * row["price"]["usd"]', 'row["hours"] * row["price"]["usd"]',
           [ADVICE + "test_one_row_by_hand"]),
    Mutant("recommend: any settings that fit", RECOMMEND, "best = max(fitting,", "best = min(fitting,", [ADVICE + "test_no_other_settings_are_faster"]),
    Mutant("recommend: the memory of hosts has no end", RECOMMEND, "if on_host(each) <= host_bytes]", "if True]", [ADVICE + "test_memory_of_hosts"]),
    Mutant("recommend: a budget buys the cheapest", RECOMMEND, "wants_speed = chosen.budget < math.inf and", "wants_speed = False and",
           [ADVICE + "test_limits_move_the_choice"]),
    Mutant("recommend: a deadline is none", RECOMMEND, 'return max(row["hours"] / chosen.deadline_hours, row["usd"] / chosen.budget)',
           'return row["usd"] / chosen.budget', [ADVICE + "test_limits_move_the_choice"]),
    Mutant("recommend: all are on the front", RECOMMEND, 'if row["hours"] < least:', "if True:", [ADVICE + "test_marks"]),
    Mutant("recommend: old prices are believed", "launch/run/instances.py", "if age > OLD_DAYS else", "if False else",
           [ADVICE + "test_an_old_price_warns"]),
]
