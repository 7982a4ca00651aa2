declare var uPlot: any; // vendor/uplot.js
