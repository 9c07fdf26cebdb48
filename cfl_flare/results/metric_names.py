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
    "err mae mse rmse rmsle nmse nrmse rrmse cvrmse rrse rae mape smape wmape mase msle medae maxae rmsd sse rss "
    "residual residuals rvd avd ravd ade fde epe mpjpe "
    # likelihoods and calibration
    "nll nlpd negloglik ce bce xent xentropy crossentropy brier ibs deviance perplexity ppl bpd bpc hinge pinball crps "
    "ece "
    "mce aic bic kl kld jsd divergence "
    # wrong answers
    "fpr fnr fdr far frr eer mindcf fallout false miss misses wrong misclassification misclassified mistakes "
    "inaccuracy failure failures violation violations wer cer ter levenshtein "
    # distances
    "distance distances dist hd hausdorff asd assd masd emd wasserstein chamfer dissimilarity fid kid lpips mmd "
    # others
    "cost costs regret davies"
)
# Words whose largest value is best.
LARGER = _split_words(
    # right answers
    "accuracy acc bacc auc auroc rocauc aucroc roc auprc aucpr aupr prauc ap map f1 f2 f05 fbeta fscore fmeasure gmean "
    "precision prec recall sensitivity sens specificity spec tpr tnr ppv npv correct kappa qwk mcc youden top1 "
    "top5 topk hit hits hitrate mrr ndcg dcg success agreement purity homogeneity completeness vmeasure silhouette "
    "calinski rand ari ami nmi matthews corrcoef matthewscorrcoef informedness "
    # images and texts
    "dice dsc nsd iou miou giou jaccard tversky panoptic psnr snr ssim msssim lddt bleu rouge meteor cider spice "
    # numbers and survival
    "r2 rsquared cindex concordance correlation corr pearson pearsonr spearman spearmanr kendall kendalltau pcc ccc "
    "icc nse kge gini lift likelihood loglikelihood loglik elbo similarity reward benefit utility"
)
# Words that are also known at the end of a longer one.
LAST_SMALLER = ("distance", "divergence", "crossentropy", "deviance")
LAST_LARGER = (
    "accuracy",
    "auc",
    "auroc",
    "dice",
    "iou",
    "likelihood",
    "precision",
    "recall",
)
# Groups of words that mean more together.
SMALLER_TOGETHER = (
    frozenset({"cross", "entropy"}),
    frozenset({"bits", "per"}),
    frozenset({"fall", "out"}),
)
EXPLAINED = frozenset({"explained", "variance"})
LARGER_TOGETHER = (
    frozenset({"c", "index"}),
    frozenset({"r", "squared"}),
    EXPLAINED,
    frozenset({"predictive", "value"}),
    frozenset({"predictive", "density"}),
    frozenset({"true", "positive"}),
    frozenset({"true", "positives"}),
    frozenset({"true", "negative"}),
    frozenset({"true", "negatives"}),
    frozenset({"normalized", "surface"}),
    frozenset({"normalised", "surface"}),
    frozenset({"exact", "match"}),
    frozenset({"g", "mean"}),
    frozenset({"v", "measure"}),
    frozenset({"f", "beta"}),
)
# Of a measure as of a loss, these make another number, of which the best end depends on its use.
DERIVED = _split_words(
    # how far values lie apart
    "std sd stddev stdev deviation se sem iqr var variance gap drop diff difference spread range disparity width "
    # changes and comparisons
    "minus inverse delta change increase decrease improvement reduction rank pvalue p to until "
    # settings
    "weight weights scale threshold thresholds size"
)
# These say nothing by themselves, beside which "score" is that of scikit-learn, the larger the better.
NEUTRAL = _split_words(
    "val validation test train eval mean avg average macro micro weighted global local score"
)
NEGATIVE = frozenset({"neg", "negative", "negated"})
# Beside these, "negative" is no negation: a true negative rate, a negative predictive value.
BESIDE_NEGATIVE = frozenset({"true", "false", "value"})
# The ends of measures that are negated by the word "negative" itself.
NEGATED = ("likelihood", "density", "similarity", "elbo")
COMPLEMENT = re.compile(r"\W*1\s*-")  # 1 - AUROC
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")


def words_of(name: str) -> set[str]:
    """The words of a metric's name.

    >>> sorted(words_of("val/meanAbsoluteError"))
    ['absolute', 'error', 'mean', 'meanabsoluteerror', 'val']
    """
    return {
        *re.split(r"[^a-z0-9]+", name.lower()),
        *(word.lower() for word in WORD.findall(name)),
    } - {""}


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
    measured, *_ = re.split(
        r"(?:^|[^a-z])at(?:[^a-z]|$)|@", name, maxsplit=1, flags=re.IGNORECASE
    )
    if COMPLEMENT.match(measured):
        return None
    words = words_of(measured)
    negations = words & NEGATIVE
    if not negations or words & BESIDE_NEGATIVE:
        return _end_of_words(words)
    end = _end_of_words(words - NEGATIVE)
    if end == "min":  # scikit-learn negates a measure that it minimises
        return "max"
    if end == "max" and (
        "neg" in negations or any(word.endswith(NEGATED) for word in words)
    ):
        return "min"
    return None  # the recall of negative samples, or a negated recall


def _end_of_words(words: set[str]) -> End | None:
    derived = words & DERIVED
    if words >= EXPLAINED:
        derived -= EXPLAINED
    if derived:
        return None
    if "d2" in words:  # a share of an error that is explained, whatever the error
        return "max"
    if any(
        word.endswith(("loss", "losses", "error", "errors", "err")) for word in words
    ):
        return "min"
    ends = {_end_of_word(word) for word in words}
    smaller = "min" in ends or any(group <= words for group in SMALLER_TOGETHER)
    larger = "max" in ends or any(group <= words for group in LARGER_TOGETHER)
    larger = larger or ("score" in words and words <= NEUTRAL)
    if smaller == larger:
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
