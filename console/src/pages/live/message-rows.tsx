import { useLingui } from '@lingui/react/macro';
import { IconChevronDown, IconChevronRight } from '@tabler/icons-react';
import { useVirtualizer } from '@tanstack/react-virtual';
import { useRef, type ReactNode } from 'react';
import { LiveTime } from '../../ui/time';

interface Row {
  topic: string;
  atMs: number;
}

/** Messages, of which only those in sight are rendered. At most one is open. */
export function MessageRows<T>({
  rows,
  rowHeight,
  message,
  isOpen,
  onToggle,
  head,
  detail,
}: {
  rows: readonly T[];
  /** Of a closed row, until it is measured. */
  rowHeight: number;
  message: (row: T) => Row;
  isOpen: (row: T) => boolean;
  onToggle: (row: T) => void;
  /** The line of a message, behind its time and topic. */
  head: (row: T) => ReactNode;
  /** Below the line of the open message. */
  detail: (row: T) => ReactNode;
}) {
  const { t } = useLingui();
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    // The heights are kept by position: by message, they would fill the memory of a page that stays open.
    overscan: 10,
  });
  return (
    <div className="live-list" ref={scroller} tabIndex={0} role="region" aria-label={t`Messages`}>
      <ol className="live-rows" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (row === undefined) return null;
          const { topic, atMs } = message(row);
          return (
            <li
              key={item.key}
              ref={virtual.measureElement}
              data-index={item.index}
              className="live-row"
              style={{ transform: `translateY(${item.start}px)` }}
            >
              <button type="button" className="live-head" aria-expanded={isOpen(row)} onClick={() => onToggle(row)}>
                {isOpen(row) ? <IconChevronDown size={13} aria-hidden /> : <IconChevronRight size={13} aria-hidden />}
                <LiveTime ms={atMs} />
                <span className="mono live-topic">{topic}</span>
                {head(row)}
              </button>
              {isOpen(row) && <div className="live-detail">{detail(row)}</div>}
            </li>
          );
        })}
      </ol>
    </div>
  );
}
