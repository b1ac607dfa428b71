import { i18n } from '@lingui/core';
import { expect, test } from 'vitest';
import { imported, newCard, placed, type Card } from './dashboard';

i18n.loadAndActivate({ locale: 'en', messages: {} });

const card = (id: string, x: number, y: number, w = 6, h = 4): Card => ({
  ...{ id, kind: 'text', title: '', x, y, w, h, sources: [], config: {} },
});

test('cards in the way of a moved card go down', () => {
  const cards = [card('a', 0, 0), card('b', 6, 0), card('c', 0, 4)];
  const next = placed(cards, { ...card('b', 3, 0) });
  expect(next.map(({ id, x, y }) => [id, x, y])).toEqual([
    ['a', 0, 4],
    ['b', 3, 0],
    ['c', 0, 8],
  ]);
});

test('a card stays on the grid and keeps a usable size', () => {
  expect(placed([], card('a', 30, -2, 40, 0))).toMatchObject([{ x: 0, y: 0, w: 24, h: 2 }]);
  expect(placed([], card('a', 22, 0, 6))).toMatchObject([{ x: 18, w: 6 }]);
});

test('a new card is below the others, with a free id', () => {
  expect(newCard([card('card-2', 0, 3)], 'chart')).toMatchObject({ id: 'card-3', y: 7 });
});

test('a file without cards is rejected', () => {
  expect(() => imported('{"name":"x"}')).toThrow('cards');
  expect(imported('{"name":"x","cards":[],"shares":[1]}')).toEqual({ name: 'x', description: '', cards: [] });
});
