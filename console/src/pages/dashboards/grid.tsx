import { ActionIcon, Tooltip } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { IconArrowsMove, IconEdit, IconTrash } from '@tabler/icons-react';
import { useRef, type KeyboardEvent, type PointerEvent } from 'react';
import { choiceName } from '../../api/choice-names';
import { CardView } from './card-view';
import { columns, placed, rowPx, type Card } from './dashboard';

interface GridProps {
  cards: Card[];
  /** Absent: the grid only shows. */
  onChange?: (cards: Card[]) => void;
  onEdit?: (card: Card) => void;
}

/** Cards on 24 columns; moved and resized with the pointer, or with the arrow keys on the handles. */
export function Grid({ cards, onChange, onEdit }: GridProps) {
  const { t } = useLingui();
  const grid = useRef<HTMLDivElement>(null);
  const drag = useRef<{ card: Card; cards: Card[]; x: number; y: number; isResize: boolean } | null>(null);

  const begin = (event: PointerEvent, card: Card, isResize: boolean) => {
    event.preventDefault();
    event.currentTarget.setPointerCapture(event.pointerId);
    drag.current = { card, cards, x: event.clientX, y: event.clientY, isResize };
  };
  const move = (event: PointerEvent) => {
    const current = drag.current;
    if (!current || !grid.current) return;
    const right = Math.round((event.clientX - current.x) / (grid.current.clientWidth / columns));
    const down = Math.round((event.clientY - current.y) / (rowPx + 8));
    onChange?.(shifted(current.cards, current.card, right, down, current.isResize));
  };
  const end = () => {
    drag.current = null;
  };
  const onKey = (event: KeyboardEvent, card: Card, isResize: boolean) => {
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
    };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    onChange?.(shifted(cards, card, step[0], step[1], isResize));
  };
  const handles = (card: Card, isResize: boolean) => ({
    onPointerDown: (event: PointerEvent) => begin(event, card, isResize),
    onPointerMove: move,
    onPointerUp: end,
    onPointerCancel: end,
    onKeyDown: (event: KeyboardEvent) => onKey(event, card, isResize),
  });
  return (
    <div ref={grid} className="dashboard-grid">
      {cards.map((card) => {
        const name = card.title || choiceName('kind', card.kind);
        return (
          <section
            key={card.id}
            className="panel dashboard-card"
            aria-label={name}
            style={{
              gridColumn: `${card.x + 1} / span ${card.w}`,
              gridRow: `${card.y + 1} / span ${card.h}`,
              order: card.y * columns + card.x,
              minHeight: card.kind === 'text' || card.kind === 'statistic' || card.kind === 'control' ? 120 : 220,
            }}
          >
            {(card.title !== '' || onChange) && (
              <div className="dashboard-card-header">
                {onChange && (
                  <Tooltip label={t`Drag, or use the arrow keys`}>
                    <ActionIcon
                      size="sm"
                      className="drag-handle"
                      aria-label={t`Move ${name}`}
                      {...handles(card, false)}
                    >
                      <IconArrowsMove size={14} />
                    </ActionIcon>
                  </Tooltip>
                )}
                <h2 className="grow">{card.title}</h2>
                {onChange && (
                  <>
                    <ActionIcon size="sm" aria-label={t`Edit ${name}`} onClick={() => onEdit?.(card)}>
                      <IconEdit size={14} />
                    </ActionIcon>
                    <ActionIcon
                      size="sm"
                      aria-label={t`Remove ${name}`}
                      onClick={() => onChange(cards.filter(({ id }) => id !== card.id))}
                    >
                      <IconTrash size={14} />
                    </ActionIcon>
                  </>
                )}
              </div>
            )}
            <div className="dashboard-card-body">
              <CardView card={card} />
            </div>
            {onChange && (
              <button
                type="button"
                className="resize-handle"
                aria-label={t`Resize ${name}`}
                title={t`Drag, or use the arrow keys`}
                {...handles(card, true)}
              />
            )}
          </section>
        );
      })}
    </div>
  );
}

function shifted(cards: Card[], card: Card, right: number, down: number, isResize: boolean): Card[] {
  const next = isResize
    ? { ...card, w: Math.min(columns - card.x, card.w + right), h: card.h + down }
    : { ...card, x: card.x + right, y: card.y + down };
  return placed(cards, next);
}
