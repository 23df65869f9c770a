"""The model card of a run, for the Hugging Face Hub."""

from dmb.app.card.writing import write_card as write_card
