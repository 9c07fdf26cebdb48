# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The name of a metric: whether its largest value is best or its smallest, or whether the name does not tell."""

from __future__ import annotations

import re
from typing import Literal

End = Literal["max", "min"]


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words in the names of metrics whose smallest value is best.
SMALLER = _split_words(
    # errors of numbers
    "err mae mse rmse rmsle nmse nrmse rrmse mape smape wmape mase msle medae maxae rmsd sse rss residual residuals "
    # likelihoods and calibration
    "nll negloglik ce bce xent xentropy crossentropy brier ibs deviance perplexity ppl bpd bpc hinge pinball crps ece "
    "mce aic bic kl kld jsd divergence "
    # wrong answers
    "fpr fnr fdr far frr eer false miss misses wrong misclassification misclassified mistakes inaccuracy failure "
    "failures violation violations wer cer ter "
    # distances
    "distance distances dist hd hausdorff asd assd masd emd wasserstein chamfer dissimilarity fid kid lpips mmd "
    # others
    "cost costs regret davies"
)
# Words whose largest value is best.
LARGER = _split_words(
    # right answers
    "accuracy acc bacc auc auroc rocauc aucroc roc auprc aucpr aupr prauc ap map f1 f2 f05 fbeta fscore fmeasure gmean "
    "precision prec recall sensitivity sens specificity spec tpr tnr ppv npv true correct kappa qwk mcc youden top1 "
    "top5 topk hit hits hitrate mrr ndcg dcg success agreement purity homogeneity completeness vmeasure silhouette "
    "rand ari ami nmi "
    # images and texts
    "dice dsc iou miou giou jaccard psnr snr ssim msssim bleu rouge meteor cider spice "
    # numbers and survival
    "r2 rsquared cindex concordance correlation corr pearson spearman kendall pcc ccc gini lift likelihood "
    "loglikelihood loglik elbo similarity reward benefit utility"
)
# Words that are also known at the end of a longer one.
LAST_SMALLER = ("distance", "divergence", "crossentropy", "deviance")
LAST_LARGER = ("accuracy", "auc", "auroc", "dice", "iou", "likelihood", "precision", "recall")
# Groups of words that mean more together.
SMALLER_TOGETHER = (frozenset({"cross", "entropy"}), frozenset({"bits", "per"}))
LARGER_TOGETHER = (
    frozenset({"c", "index"}),
    frozenset({"r", "squared"}),
    frozenset({"explained", "variance"}),
    frozenset({"predictive", "value"}),
)
# How far values lie apart: of an accuracy as of a loss, which end is best depends on its use.
SPREADS = _split_words("std var variance gap drop diff difference spread range disparity minus")
# These say nothing by themselves, beside which "score" is that of scikit-learn, the larger the better.
NEUTRAL = _split_words("val validation test train eval mean avg average macro micro weighted global local score")
NEGATIVE = frozenset({"neg", "negative", "negated"})
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")


def words_of(name: str) -> set[str]:
    """The words of a metric's name.

    >>> sorted(words_of("val/meanAbsoluteError"))
    ['absolute', 'error', 'mean', 'meanabsoluteerror', 'val']
    """
    return {*re.split(r"[^a-z0-9]+", name.lower()), *(word.lower() for word in WORD.findall(name))} - {""}


def best_end(name: str) -> End | None:
    """Which end of a metric is best.

    Args:
        name: of the metric, as a task or a script reports it.

    Returns:
        ``max`` or ``min``; None if the name does not tell.

    >>> best_end("val_loss"), best_end("c-index"), best_end("neg_mean_squared_error"), best_end("gain")
    ('min', 'max', 'max', None)
    >>> best_end("neg_log_likelihood"), best_end("tpr_at_1pct_fpr"), best_end("accuracy_gap")
    ('min', 'max', None)
    """
    measured, *_ = re.split(r"(?:^|[^a-z])at(?:[^a-z]|$)|@", name, maxsplit=1, flags=re.IGNORECASE)
    known = words_of(measured)
    end = _end_of_words(known - NEGATIVE)
    if end is None or known.isdisjoint(NEGATIVE) or known & {"predictive"}:
        return end
    # scikit-learn negates what it minimises; "true negative rate" is no negation, nor is a negative sample.
    if "true" in known or "false" in known:
        return end
    return "min" if end == "max" else "max"


def _end_of_words(words: set[str]) -> End | None:
    if any(word.endswith(("loss", "losses", "error", "errors")) for word in words):
        return None if words & SPREADS else "min"
    ends = {_end_of_word(word) for word in words}
    smaller = "min" in ends or any(group <= words for group in SMALLER_TOGETHER)
    larger = "max" in ends or any(group <= words for group in LARGER_TOGETHER)
    larger = larger or ("score" in words and words <= NEUTRAL)
    is_spread = bool(words & SPREADS) and not any(group <= words for group in LARGER_TOGETHER)
    if is_spread or smaller == larger:
        return None
    return "min" if smaller else "max"


def _end_of_word(word: str) -> End | None:
    """Of a word that is known, with or without a number, or that ends with one, as ``meaniou``."""
    for known in (word, word.strip("0123456789")):
        if known in SMALLER:
            return "min"
        if known in LARGER:
            return "max"
    if word.endswith(LAST_SMALLER):
        return "min"
    if word.endswith(LAST_LARGER):
        return "max"
    return None
